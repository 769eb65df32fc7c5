"""The command line as a test runs it, and what it leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app import cli
from app.bench import grid
from tests.app.bench.started import in_a_thread


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(argv)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def report_of(folder: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return made


def served_arms(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the arms whose servers are started from now on, as they are."""
    started: list[str] = []

    def counted(arm: Any, *rest: Any) -> Any:
        started.append(arm.name)
        return in_a_thread(arm, *rest)

    monkeypatch.setattr(grid, "serving", counted)
    return started
