"""Threads for what takes long with a large body: tokenising, and reading the JSON itself. In the event loop it would
hold up every stream, and the default pool is busy with other things while the engine loads.

A thread helps only if it lets go of the interpreter's lock, so no single call into C may take long there either: the
tokenizer works in windows (`app.text.windows`), and a body's JSON is bounded before it is read (`check_size`). Short
work has a thread of its own, since a text of megabytes takes seconds.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

from app.engine import InvalidRequest
from app.text.cancellation import cancellable
from app.text.windows import WINDOW

_LONG_THREADS = 2
LARGE = 64 * 1024
"""Bytes of a body that are worth a thread."""
SHORT = WINDOW
"""Characters or ids that take milliseconds."""
_BACKSLASH = ord("\\")
MAX_VALUES = 120_000
"""Values of a body's JSON that take a microsecond each: texts, lists and objects. Numbers take a sixteenth."""

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class TokenizerPool:
    """The tokenising threads of one server."""

    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(1, thread_name_prefix="tokenize-short")
        self._long = ThreadPoolExecutor(_LONG_THREADS, thread_name_prefix="tokenize-long")

    def submit(
        self, size: int, work: Callable[[*Arguments], Result], *arguments: *Arguments
    ) -> asyncio.Future[Result]:
        """What `work(*arguments)` returns, to be awaited in the event loop or cancelled, which ends the work at its
        next `app.text.cancellation.check`. `size` is the whole request's, in characters or ids: many short texts
        are long.
        """
        threads = self._short if size <= SHORT else self._long
        ended = threading.Event()
        future = asyncio.get_running_loop().run_in_executor(threads, cancellable, ended, work, *arguments)
        future.add_done_callback(lambda _: ended.set())
        return future

    def close(self) -> None:
        """Forgets what has not begun; what runs ends by itself."""
        for threads in (self._short, self._long):
            threads.shutdown(wait=False, cancel_futures=True)


def check_size(raw: bytes) -> None:
    """A body's JSON has not more values than can be read without holding up others. Long texts and a million token ids
    are no matter; a body of a million lists or names is read as one call into C, for seconds.

    Raises:
        InvalidRequest: it has.
    """
    values, at = 0.0, 0
    while at < len(raw):
        quote = raw.find(b'"', at)
        end = len(raw) if quote < 0 else quote
        values += 1 + raw.count(b",", at, end) / 16 + raw.count(b"[", at, end) + raw.count(b"{", at, end)
        if values > MAX_VALUES:
            raise InvalidRequest(f"the body holds more than {MAX_VALUES} values (16 numbers count as one)")
        at = _behind(raw, end)


def _behind(raw: bytes, quote: int) -> int:
    """The place behind the string that opens at `quote`."""
    end = raw.find(b'"', quote + 1)
    while end >= 0:
        begin = end
        while raw[begin - 1] == _BACKSLASH:
            begin -= 1
        if (end - begin) % 2 == 0:
            return end + 1
        end = raw.find(b'"', end + 1)
    return len(raw)
