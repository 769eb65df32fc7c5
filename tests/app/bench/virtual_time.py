"""An event loop whose clock jumps: sleeps of seconds end at once and last exactly as long as they say."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits: the time that it was to wait passes on the clock instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found and timeout is None:
            raise RuntimeError("nothing will ever happen: the program waits for itself")
        if not found:
            self.now += timeout or 0.0
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._clock.now


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """`asyncio.run` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
