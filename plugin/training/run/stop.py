"""Stopping a run politely: the first SIGTERM or Ctrl-C asks it to save and end, the second ends it at once.

Under torchrun a Ctrl-C comes twice, from the terminal and from torchrun, so what follows at once is the same one.
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any, Self


class Interrupted(Exception):
    """The run was asked to stop and has saved what it had."""


class StopRequest:
    """`requested` becomes true with the first signal while the context lasts.

    Another one within `echo` seconds of it means nothing.
    """

    def __init__(self, echo: float = 0.0) -> None:
        self.requested = False
        self._echo, self._asked = echo, 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        # Python delivers signals to the main thread alone; elsewhere nobody can ask.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if not self.requested:
            self.requested, self._asked = True, time.monotonic()
        elif time.monotonic() - self._asked >= self._echo:
            raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
