"""The unit: systemd itself takes it, its command line is ours, and a stop has the time that the gateway may need."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from app.cli import _parser
from app.process.uvicorn_command import WRONG_USAGE
from tests.config.files import CONFIG, LONGEST_STOP_S

TEXT = (CONFIG / "systemd/t5gemma2.service").read_text()
LINES = [line.partition("=") for line in TEXT.splitlines() if "=" in line and not line.startswith("#")]
OPTIONS = {name: value for name, _, value in LINES if name != "Environment"}
ENVIRONMENT = dict(
    one.split("=") for name, _, value in LINES if name == "Environment" for one in value.split()
)


@pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed (`apt-get install systemd`)"
)
def test_systemd_itself_takes_it(tmp_path: Path) -> None:
    """It looks for the program, too, which stands elsewhere here."""
    file = tmp_path / "t5gemma2.service"
    program = OPTIONS["ExecStart"].split()[0]
    file.write_text(TEXT.replace(program, shutil.which("true") or ""))
    ended = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout + ended.stderr) == (0, "")


def test_command() -> None:
    """The command line is understood; wrong usage is not tried again."""
    program, *words = shlex.split(OPTIONS["ExecStart"])
    assert Path(program).name == "t5gemma2"
    arguments = _parser().parse_args(words)
    assert (arguments.host, arguments.port) == ("127.0.0.1", 8000)
    assert OPTIONS["RestartPreventExitStatus"] == str(WRONG_USAGE) and OPTIONS["Restart"] == "on-failure"


def test_a_wrong_setting_is_given_up() -> None:
    """Such a start fails within seconds, for ever; five tries must fall into the time in which they are counted."""
    tries, pause_s, fails_s = int(OPTIONS["StartLimitBurst"]), int(OPTIONS["RestartSec"]), 15
    assert int(OPTIONS["StartLimitIntervalSec"]) > tries * (pause_s + fails_s)


def test_stop() -> None:
    """SIGTERM reaches the gateway alone, or the engine would end under the running requests."""
    assert OPTIONS["KillMode"] == "mixed" and int(OPTIONS["TimeoutStopSec"]) > LONGEST_STOP_S


def test_writable_places() -> None:
    """All that is written lies in the state folder."""
    folder = f"%S/{OPTIONS['StateDirectory']}"
    assert ENVIRONMENT["HOME"] == OPTIONS["WorkingDirectory"] == folder
    caches = [value for name, value in ENVIRONMENT.items() if "CACHE" in name]
    assert len(caches) == 3 and all(cache.startswith(f"{folder}/.cache/") for cache in caches)
    assert OPTIONS["DynamicUser"] == "yes" and OPTIONS["ProtectSystem"] == "strict"
