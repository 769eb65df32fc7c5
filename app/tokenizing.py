"""Threads of their own for tokenising: a megabyte of text takes long enough to hold up every stream if it ran in the
event loop, and the default pool is busy with other things while the engine loads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

_THREADS = 2

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class TokenizerPool:
    """The tokenising threads of one server."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="tokenize")

    def submit(self, work: Callable[[*Arguments], Result], *arguments: *Arguments) -> asyncio.Future[Result]:
        """What `work(*arguments)` returns, to be awaited in the event loop or cancelled."""
        return asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    def close(self) -> None:
        """Forgets what has not begun; what runs ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)
