"""How far a benchmark is: a bar with the time left on a terminal, lines in a log."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class ProgressBar:
    """A bar on standard error; where that is no terminal, stages are printed and no bar is drawn."""

    def __init__(self, requests: int, console: Console | None = None) -> None:
        """`requests` is the number of measured requests of the whole plan."""
        self._console = console or Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=requests)

    def stage(self, words: str) -> None:
        """What happens now."""
        self._bar.update(self._task, description=words)
        if not self._console.is_terminal:
            self._console.print(words, markup=False, highlight=False)

    def advance(self, requests: int = 1) -> None:
        """So many more requests are done."""
        self._bar.advance(self._task, requests)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
