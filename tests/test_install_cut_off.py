"""An installation that is cut off heals at the next `make`, and the first cause of a failure is shown (N24).

`.ci/install` runs with a Python of ours that makes environments and installs nothing, as slowly as told.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.signals import HEARING

ROOT = Path(__file__).parents[1]
PYTHON = """#!/usr/bin/env bash
# What .ci/install asks of Python. SLOW is the part that hangs: venv, or a word of a pip command.
folder=$(dirname "$0")
case "$*" in
-c*) exit 0 ;;
--version) echo "Python 3.12.0" ;;
"-m venv --clear"*)
    rm -rf "$4" && mkdir -p "$4/bin" && cp "$0" "$4/bin/python"
    [ "${SLOW:-}" = venv ] && echo hangs >>"$SEEN" && sleep 60
    touch "$4/bin/pip"
    ;;
"-m pip"*)
    [ -e "$folder/pip" ] || { echo "$0: No module named pip" >&2; exit 1; }
    echo "$*" >>"$SEEN"
    [ -n "${SLOW:-}" ] && [[ "$*" == *"$SLOW"* ]] && [[ "$*" != *--version* ]] && echo hangs >>"$SEEN" && sleep 60
    [ -z "${FAIL:-}" ] || [[ "$*" != *" install "* ]] || {
        if [[ "$*" == *index-url* ]]; then echo "ERROR: second"; else echo "ERROR: first"; fi >&2
        exit 1
    }
    ;;
esac
exit 0
"""


class Project:
    """A checkout with the installer, and a Python to run it with."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen = folder, folder / "seen"
        for name in (".ci/install", "pyproject.toml", "requirements-cpu.lock"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
        self.python = folder / "python3.12"
        self.python.write_text(PYTHON)
        self.python.chmod(0o755)

    def start(self, **variables: str) -> subprocess.Popen[str]:
        """The installer, in a process group of its own, as a terminal gives it."""
        self.seen.unlink(missing_ok=True)
        return subprocess.Popen(
            [*HEARING, "bash", ".ci/install"],
            cwd=self.folder,
            env={
                "PATH": "/usr/bin:/bin",
                "DEVICE": "cpu",
                "PYTHON": str(self.python),
                "SEEN": str(self.seen),
                **variables,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def install(self, **variables: str) -> tuple[int, str]:
        process = self.start(**variables)
        words, _ = process.communicate(timeout=30)
        return process.returncode, words

    def cut_off(self, number: int, **variables: str) -> None:
        """Kills the installer and all that it started when it hangs in what SLOW names."""
        process = self.start(**variables)
        deadline = time.monotonic() + 20
        while not (self.seen.exists() and "hangs" in self.seen.read_text()):
            assert time.monotonic() < deadline and process.poll() is None, process.communicate()
            time.sleep(0.02)
        os.killpg(process.pid, number)
        process.communicate(timeout=30)
        assert process.returncode != 0


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
@pytest.mark.parametrize("slow", ["venv", "torch==", "requirements-cpu.lock", "-e ."])
def test_an_installation_that_was_cut_off(project: Project, number: int, slow: str) -> None:
    """The next one makes the environment anew, whatever was cut off, and then installs everything."""
    project.cut_off(number, SLOW=slow)
    assert not (project.folder / ".venv/installed.stamp").exists()
    code, words = project.install()
    assert code == 0 and "Python 3.12.0 -> .venv" in words and words.endswith("install: done\n"), words
    assert project.seen.read_text().count(" install ") == 3
    assert project.install() == (0, "")


def test_the_first_cause_is_shown(project: Project) -> None:
    """torch is looked for in two places; that the second failed may not hide why the first did."""
    code, words = project.install(FAIL="yes")
    assert code == 1 and "ERROR: first" in words and "ERROR: second" in words, words


def test_a_failed_download_keeps_the_environment(project: Project) -> None:
    """Without a network the next try goes on with what there is: only what was cut off may be half."""
    assert project.install(FAIL="yes")[0] == 1
    code, words = project.install()
    assert code == 0 and "-> .venv" not in words, words


def test_an_environment_without_pip(project: Project) -> None:
    """As a tool other than venv makes it, or an older installer left it."""
    binaries = project.folder / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python").write_bytes(project.python.read_bytes())
    (binaries / "python").chmod(0o755)
    code, words = project.install()
    assert code == 0 and "No module named pip" not in words and "-> .venv" in words, words
