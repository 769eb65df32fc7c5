"""Writes the two lock files: `make lock`.

`requirements-cpu.lock` is what this .venv holds, hence what the tests ran with. `requirements-cuda.lock` is
resolved by pip for `.[cuda,dev]` without installing; it is read, not run, wherever there is no GPU.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT = "t5gemma2-serving"
NOT_ON_CPU = {"torchvision", "torchaudio", "torchcodec"}
TOOLS = {"pip", "wheel"}
SIX = "six==1.17.0"


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def write(device: str, versions: dict[str, str], origin: str) -> None:
    lines = [f"{name}=={version}" for name, version in sorted(versions.items())]
    head = [f"# {origin}", "# Complete: install with --no-deps. Written by `make lock`."]
    (ROOT / f"requirements-{device}.lock").write_text("\n".join([*head, *lines]) + "\n")


def installed() -> dict[str, str]:
    found = {canonical(d.name): d.version for d in importlib.metadata.distributions()}
    return {name: found[name] for name in found.keys() - NOT_ON_CPU - TOOLS - {PROJECT}}


def resolved() -> dict[str, str]:
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--dry-run",
        "--ignore-installed",
        "--report",
        "-",
    ]
    # A CPU wheel of torch that some pip configuration offers must not stand in for the CUDA one.
    environment = os.environ | {"PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    ended = subprocess.run(
        [*command, ".[cuda,dev]", SIX],
        cwd=ROOT,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    packages = [item["metadata"] for item in json.loads(ended.stdout)["install"]]
    return {canonical(p["name"]): p["version"] for p in packages if canonical(p["name"]) != PROJECT}


if __name__ == "__main__":
    write("cpu", installed(), "The set that the tests ran with: vLLM's CPU build, Python 3.11 and 3.12.")
    write("cuda", resolved(), "Resolved for vLLM with CUDA, Python 3.11 and 3.12; not run on the CPU.")
