"""What loading is at, for the log and for `/ready`: something moves at least every ten seconds."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

log = logging.getLogger("app.gateway")

QUIET_S = 8.0
"""Seconds without a line after which the stage is told again."""
LINES_EVERY_S = 1.0
"""Within a stage, what follows a line sooner is not told: on a fast machine a warm-up has thirty steps a second."""
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
        now, before = self._clock(), self.stage
        self.stage, self.detail, self._entered = stage, detail, now
        if stage != before or now - self._told >= LINES_EVERY_S:
            self._told = now
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
