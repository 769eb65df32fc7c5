"""An arm's process answers line by line, and one that hangs is killed. No engine is started."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.engine.process import ArmProcess, needs_plugin

SCRIPT = """
import json, sys
print("@" + json.dumps({"ready": 1.5}), flush=True)
for line in sys.stdin:
    print("something else", flush=True)
    command = json.loads(line)
    if "end" in command: sys.exit()
    print("@" + json.dumps({"error": "no"} if "fail" in command else command), flush=True)
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Callable[..., ArmProcess]]:
    made: list[ArmProcess] = []

    def make(script: str = SCRIPT, timeout_s: float = 30) -> ArmProcess:
        log = (tmp_path / "log").open("w")
        made.append(ArmProcess("raw", {}, log, timeout_s, [sys.executable, "-c", script]))
        return made[-1]

    yield make
    for arm in made:
        arm.stop()


def test_an_arm_answers_line_by_line(process: Callable[..., ArmProcess], tmp_path: Path) -> None:
    arm = process()
    assert arm.answer() == {"ready": 1.5}
    assert arm.ask(run=4, tokens=2) == {"run": 4, "tokens": 2}
    with pytest.raises(RuntimeError, match=r"failed at .*: no"):
        arm.ask(fail=1)
    assert arm.ask(graphs=1) == {"graphs": 1}
    with pytest.raises(RuntimeError, match="without an answer"):
        arm.ask(end=1)
    arm.log.flush()
    assert (tmp_path / "log").read_text() == "something else\n" * 4


def test_an_arm_that_hangs_is_killed(process: Callable[..., ArmProcess]) -> None:
    arm = process("import time; time.sleep(60)", timeout_s=0.2)
    with pytest.raises(RuntimeError, match="without an answer"):
        arm.answer()


def test_a_program_ends_at_once_where_vllm_would_not_load_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_plugin()
    monkeypatch.setenv("VLLM_PLUGINS", "others")
    with pytest.raises(SystemExit, match="VLLM_PLUGINS='others' leaves out t5gemma2"):
        needs_plugin()
