"""The end of what a loading thread has started."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from app.process import child_processes
from app.process.child_processes import (
    LOADING_STOP_S,
    MODEL_INSPECTION,
    end_children,
    end_model_inspection,
)


class Child:
    """A process that takes note of how it is ended, and goes on."""

    def __init__(self, pid: int, asked: Callable[[], None] = lambda: None) -> None:
        self.pid, self.told = pid, []  # type: ignore[var-annotated]
        self.asked = asked

    def terminate(self) -> None:
        self.told.append(signal.SIGTERM)
        self.asked()

    def kill(self) -> None:
        self.told.append(signal.SIGKILL)


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[Child]:
    found = [Child(1), Child(2)]
    monkeypatch.setattr(multiprocessing, "active_children", lambda: found)
    monkeypatch.setattr(child_processes, "end_imports", lambda: None)
    monkeypatch.setattr(child_processes, "end_model_inspection", lambda: None)
    return found


@pytest.mark.anyio
async def test_each_is_asked_once_and_then_ended(
    children: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that hears SIGTERM logs it each time; one that began meanwhile is asked, too."""
    monkeypatch.setattr(child_processes, "LOADING_STOP_S", 60)
    loaded = asyncio.Event()
    children[1].asked = lambda: children.append(Child(3, loaded.set))
    await end_children(loaded)
    assert [child.told for child in children] == [[signal.SIGTERM, signal.SIGKILL]] * 3


@pytest.mark.anyio
async def test_loading_that_failed_is_not_waited_for(children: list[Child]) -> None:
    loaded = asyncio.Event()
    asyncio.get_running_loop().call_later(0.1, loaded.set)
    began = time.monotonic()
    await end_children(loaded)
    assert time.monotonic() - began < LOADING_STOP_S


def test_vllms_inspection_of_the_model_is_ended_and_no_other_program() -> None:
    """It is nobody's child process but the system's."""
    sleeping = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen([*sleeping, MODEL_INSPECTION]) as inspecting, subprocess.Popen(sleeping) as another:
        try:
            end_model_inspection()
            assert inspecting.wait(60) == -signal.SIGKILL
            assert another.poll() is None
        finally:
            inspecting.kill()
            another.kill()


def test_vllm_runs_it_under_this_name() -> None:
    from vllm.model_executor.models import registry

    assert [sys.executable, "-m", MODEL_INSPECTION] == registry._SUBPROCESS_COMMAND
