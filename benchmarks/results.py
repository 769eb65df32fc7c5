"""The results file: each figure by its name, and of each command that measured some, when and on what it ran.

    {"figures": {"kernel_bandwidth_fraction": 0.81, ...},
     "runs": {"python -m benchmarks.attention": {"date": ..., "commit": ..., "hardware": {...}, "versions": {...},
                                                 "figures": [names], "details": {...}}, ...}}

A figure has the value, and belongs to the run, of the command that measured it last.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app.drafts.machine import hardware, versions

ROOT = Path(__file__).resolve().parents[1]
H200 = ROOT / "benchmarks" / "results" / "h200.json"
_MADE_FROM_RESULTS = ("benchmarks/results", "BENCHMARKS.md")


def read(path: Path) -> dict[str, Any]:
    """What the file holds; nothing where there is none."""
    return json.loads(path.read_text()) if path.exists() else {"figures": {}, "runs": {}}


def record(
    path: Path, command: str, figures: Mapping[str, float], details: Mapping[str, Any] | None = None
) -> None:
    """Merges the figures of one run into the file, which is made where there is none.

    Args:
        path: the file.
        command: what was typed; its figures replace those of the same command before.
        figures: name -> value; each also replaces the figure of that name of another command, the rest stay.
        details: whatever else the run tells, JSON-ready: what the figures were computed from.
    """
    results = read(path)
    old = results["runs"].pop(command, {"figures": []})
    kept = {name: value for name, value in results["figures"].items() if name not in old["figures"]}
    for run in results["runs"].values():
        run["figures"] = [name for name in run["figures"] if name not in figures]
    results["figures"] = dict(sorted({**kept, **figures}.items()))
    results["runs"] = {name: run for name, run in results["runs"].items() if run["figures"]} | {
        command: {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            **measured_with(),
            "figures": sorted(figures),
            "details": dict(details or {}),
        }
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")


def measured_with() -> dict[str, Any]:
    """Commit, hardware and versions that a figure of this process is measured with."""
    return {"commit": commit(), "hardware": hardware(), "versions": versions()}


def typed(module: str) -> str:
    """The command line of this process, which runs `module`; where it keeps logs is this machine's own matter."""
    words = sys.argv[1:]
    if "--logs" in words:
        at = words.index("--logs")
        words = words[:at] + words[at + 2 :]
    return shlex.join(["python", "-m", module, *words])


def commit() -> str | None:
    """The commit of this checkout, `-dirty` behind it when tracked files differ from it, those apart that are made from
    results. Of a copy without its repository: what the variable COMMIT says, or None.
    """
    if given := os.environ.get("COMMIT"):
        return given

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)

    try:
        head = git("rev-parse", "--short=12", "HEAD")
        if head.returncode:
            return None
        changed = git("diff", "--quiet", "HEAD", "--", ".", *(f":!{path}" for path in _MADE_FROM_RESULTS))
    except FileNotFoundError:  # no git here
        return None
    return head.stdout.strip() + ("-dirty" if changed.returncode else "")
