"""Standard output and standard error that nobody waits for.

A pipe that is open and never read holds 64 KiB; every further write waits for its reader: log lines in the event loop,
a step of the engine, the end itself. Where the descriptors 1 and 2 are pipes or sockets, they become pipes to this
process. One thread reads them into a bounded backlog, another writes that on and may wait as long as it likes. This is
below Python's logging, so that all go this way: uvicorn, vLLM, `print`, C libraries, and the engine's processes, which
inherit the descriptors. Files and terminals stay as they are.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import select
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

BACKLOG_BYTES: Final = 1 << 20
"""A few thousand lines."""
FLUSH_S: Final = 1.0
"""How long the end waits for a reader."""
_CHUNK: Final = 65_536
_LINE_ENDS: Final = (b"\n", b"\r")
"""The second is a progress bar's."""


class Backlog:
    """Lines that are still to be written, for one thread that puts and one that takes. Full, it loses whole lines until
    half of it is free again; one line then says how many.
    """

    def __init__(self, limit: int, lost: Callable[[int], bytes]) -> None:
        """`limit` in bytes; `lost` makes the line about so many lost ones."""
        self._limit, self._lost_line = limit, lost
        self._parts: deque[bytes] = deque()
        self._size = self._lost = 0
        self._begins = True
        """Whether what is put next begins a line."""
        self._skips = self._cut = False
        """Whether the rest of the present line is lost; whether one was lost whose beginning is here."""
        self._ended = False
        self._changed = threading.Condition()

    def put(self, data: bytes) -> None:
        """Takes lines and parts of lines; never waits for the reader."""
        with self._changed:
            for part in data.splitlines(keepends=True):
                self._put(part)
            self._changed.notify()

    def _put(self, part: bytes) -> None:
        began, self._begins = self._begins, part.endswith(_LINE_ENDS)
        if not began and self._skips:
            return
        room = self._limit // 2 if self._lost else self._limit
        if self._size + len(part) > room:
            self._lost += 1
            self._skips, self._cut = True, self._cut or not began
            return
        self._skips = False
        self._tell()
        self._append(part)

    def _tell(self) -> None:
        if self._lost:
            self._append((b"\n" if self._cut else b"") + self._lost_line(self._lost))
            self._lost, self._cut = 0, False

    def _append(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)

    def take(self) -> bytes | None:
        """The next line or part of one, once there is one; None: that was the last."""
        with self._changed:
            self._changed.wait_for(lambda: self._parts or self._lost or self._ended)
            if not self._parts:
                self._tell()
            if not self._parts:
                return None
            part = self._parts.popleft()
            self._size -= len(part)
            return part

    def end(self) -> None:
        """Nothing is put any more."""
        with self._changed:
            self._ended = True
            self._changed.notify()


class Relay:
    """What is written to some descriptors of one and the same file goes on to it, whenever that takes it."""

    def __init__(
        self, descriptors: Sequence[int], lost: Callable[[int], bytes], limit: int = BACKLOG_BYTES
    ) -> None:
        self._descriptors, self._backlog = descriptors, Backlog(limit, lost)
        self._kept = os.dup(descriptors[0])
        self._source, writing = os.pipe()
        os.set_blocking(self._source, False)
        for descriptor in descriptors:
            os.dup2(writing, descriptor)
        os.close(writing)
        self._ending, self._end = os.pipe()
        self._reader = threading.Thread(target=self._read, name="read-output", daemon=True)
        self._writer = threading.Thread(target=self._write, name="write-output", daemon=True)
        self._reader.start()
        self._writer.start()
        if 2 in descriptors and faulthandler.is_enabled():
            faulthandler.enable(self._kept)  # in a crash no thread relays anything

    def _read(self) -> None:
        waiting = select.poll()
        waiting.register(self._source, select.POLLIN)
        waiting.register(self._ending, select.POLLIN)
        ends = closed = False
        while not (ends or closed):
            ends = any(descriptor == self._ending for descriptor, _ in waiting.poll())
            with suppress(BlockingIOError):
                while data := os.read(self._source, _CHUNK):
                    self._backlog.put(data)
                closed = True  # nobody can write any more
        self._backlog.end()

    def _write(self) -> None:
        while (part := self._backlog.take()) is not None:
            with suppress(OSError):  # the reader is gone: nobody misses it
                self._write_all(part)

    def _write_all(self, part: bytes) -> None:
        while part:
            try:
                part = part[os.write(self._kept, part) :]
            except BlockingIOError:  # whoever opened it wanted no waiting
                _writable(self._kept, None)

    def end(self) -> None:
        """Reads what has been written, then no more."""
        os.close(self._end)

    def close(self, deadline: float) -> None:
        """After `end`: waits until all is written, at most until `deadline` (monotonic seconds). From then on this
        process writes to the file itself, if there is room for a few lines, else nowhere. What child processes write
        is lost.
        """
        for thread in (self._reader, self._writer):
            thread.join(max(0.0, deadline - time.monotonic()))
        written = not self._writer.is_alive() and _writable(self._kept, 0)
        target = self._kept if written else os.open(os.devnull, os.O_WRONLY)
        for descriptor in _open_to(self._source, self._descriptors):  # others were closed on purpose
            os.dup2(target, descriptor)
        if 2 in self._descriptors and faulthandler.is_enabled():
            faulthandler.enable(2)
        # A thread that goes on still uses its own descriptors.
        done = [] if self._reader.is_alive() else [self._source, self._ending]
        for descriptor in (*done, target):
            os.close(descriptor)


_relays: list[Relay] = []


def relay_output(lost: Callable[[int], bytes]) -> None:
    """Nobody who writes to standard output or error waits for a reader from now on, until `end_relay` or the end of the
    process. `lost` makes the line about so many lost ones. Called again, it does nothing.
    """
    if _relays:
        return
    _relays.extend(Relay(group, lost) for group in _same_files((1, 2)))
    if _relays:
        atexit.register(end_relay)


def _same_files(descriptors: Sequence[int]) -> list[list[int]]:
    """Those whose reader can be waited for, together where it is the same: their order is to stay."""
    groups: dict[tuple[int, int], list[int]] = {}
    for descriptor in descriptors:
        with suppress(OSError):  # it is closed
            found = os.fstat(descriptor)
            if stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode):
                groups.setdefault((found.st_dev, found.st_ino), []).append(descriptor)
    return list(groups.values())


def _open_to(pipe: int, descriptors: Sequence[int]) -> list[int]:
    """Those of `descriptors` that still are the pipe's other end."""
    return [one for group in _same_files((pipe, *descriptors)) if group[0] == pipe for one in group[1:]]


def end_relay(seconds: float = FLUSH_S) -> None:
    """Has what was written reach its reader, for so long at most, and ends the threads: a process that ends by a signal
    would take the last lines with it.
    """
    if not _relays:
        return
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # none, its reader gone, or closed
            stream.flush()
    for relay in _relays:
        relay.end()
    deadline = time.monotonic() + seconds
    while _relays:
        _relays.pop().close(deadline)


def _writable(descriptor: int, timeout_ms: int | None) -> bool:
    """Whether a few lines can be written at once; waits so long for it, None: for ever. A pipe is writable when it has
    room for a page.
    """
    waiting = select.poll()
    waiting.register(descriptor, select.POLLOUT)
    return bool(waiting.poll(timeout_ms))
