"""What loading is at, for the log and for `/ready`: something moves at least every ten seconds."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

log = logging.getLogger("app.gateway")

QUIET_S = 8.0
"""Seconds without a line after which the stage is told again."""
_TICK_S = 0.5


class LoadingProgress:
    """`app.engine.Progress` with seconds; `stage` and `detail` are the latest that it was told."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.began = self._entered = self._told = clock()
        self.stage, self.detail = "start", ""

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return self._clock() - self.began

    def __call__(self, stage: str, detail: str) -> None:
        self._entered = self._told = self._clock()
        self.stage, self.detail = stage, detail
        log.info("[%5.1f s] %s: %s", self.seconds, stage, detail)

    def remind(self) -> None:
        """Tells the stage again, with its seconds, when nothing was told for a while."""
        now = self._clock()
        if now - self._told >= QUIET_S and self.detail:
            self._told = now
            log.info("[%5.1f s] %s: %s (%.0f s)", self.seconds, self.stage, self.detail, now - self._entered)

    async def remind_until(self, ended: asyncio.Event) -> None:
        """Sees to the reminders until loading has ended."""
        while not ended.is_set():
            await asyncio.sleep(_TICK_S)
            self.remind()
