"""How far a run is: a bar on a terminal, a line every few seconds in a log."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from plugin.training.run.trainer import StepReport

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LINES = 10.0


class RunProgress:
    """Loss, decoder tokens a second and the time left of a run of `steps` optimizer steps of which `done` are done."""

    def __init__(self, steps: int, done: int = 0, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._steps, self._first, self._done = steps, done, done
        self._tokens = 0
        self._started = self._last_line = time.perf_counter()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("training", total=steps, completed=done)

    def advance(self, reports: Sequence[StepReport], losses: Sequence[float]) -> None:
        """These steps are done."""
        self._done += len(reports)
        self._tokens += sum(report.tokens for report in reports)
        now = time.perf_counter()
        speed = self._tokens / max(now - self._started, 1e-9)
        words = f"loss {losses[-1]:.4f}  {speed:,.0f} tokens/s"
        self._bar.update(self._task, description=words, completed=self._done)
        last = self._done >= self._steps
        if not self._console.is_terminal and (last or now - self._last_line >= _SECONDS_BETWEEN_LINES):
            self._last_line = now
            left = (now - self._started) / (self._done - self._first) * (self._steps - self._done)
            logger.info(
                "step %d/%d  %s  %s left", self._done, self._steps, words, timedelta(seconds=round(left))
            )

    def say(self, words: str) -> None:
        """A line that stays."""
        if self._console.is_terminal:
            self._console.print(words, markup=False, highlight=False)
        else:
            logger.info("%s", words)

    def __enter__(self) -> Self:
        self._started = self._last_line = time.perf_counter()
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
