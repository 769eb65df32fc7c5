"""The files of `config/`, and how long a gateway may take to end, which several of them must allow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from app.config.settings import Settings
from app.factory import CUT_OFF_S

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config"
ENGINE_ENDS_S = 5
"""vLLM ends its engine's process by force after so many seconds."""
LONGEST_STOP_S = Settings.model_fields["shutdown_grace_s"].default + CUT_OFF_S + ENGINE_ENDS_S
"""From SIGTERM to the process's end at the latest, with the default grace time."""


def documents(name: str) -> list[Any]:
    """All documents of a YAML file."""
    return list(yaml.safe_load_all((CONFIG / name).read_text()))
