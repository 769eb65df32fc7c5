"""Work in a thread that nobody waits for any more. A thread cannot be ended from outside, so long work asks now and
then (`check`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextvars import ContextVar
from typing import TypeVar, TypeVarTuple

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

_ended: ContextVar[threading.Event | None] = ContextVar("ended", default=None)


def cancellable(
    ended: threading.Event, work: Callable[[*Arguments], Result], *arguments: *Arguments
) -> Result:
    """What `work(*arguments)` returns; once `ended` is set, its next `check` raises."""
    token = _ended.set(ended)
    try:
        return work(*arguments)
    finally:
        _ended.reset(token)


def check() -> None:
    """The work's result is still waited for, as far as this thread knows.

    Raises:
        CancelledError: it is not.
    """
    ended = _ended.get()
    if ended is not None and ended.is_set():
        raise CancelledError
