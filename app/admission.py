"""Back-pressure: how many sequences may be running or waiting before new ones are told to come back later."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from app.engine import InvalidRequest
from app.errors import QueueFull


class Admission:
    """Counts sequences (prompts times n) from acceptance to their end; never waits."""

    def __init__(self, batch: int, queue: int) -> None:
        """`batch` sequences run at a time and `queue` more may wait."""
        self.batch, self.limit = batch, batch + queue
        self.in_flight = 0
        self._empty = asyncio.Event()
        self._empty.set()

    async def emptied(self) -> None:
        """Until none is running or waiting."""
        await self._empty.wait()

    @contextmanager
    def enter(self, sequences: int) -> Iterator[None]:
        """Room for `sequences` while the block runs.

        Raises:
            QueueFull: none is left now.
            InvalidRequest: they would not even fit alone.
        """
        if sequences > self.limit:
            raise InvalidRequest(
                f"prompt: {sequences} sequences (prompts times n) are more than the {self.limit} that are"
                " taken at a time",
                "prompt",
            )
        if self.in_flight + sequences > self.limit:
            raise QueueFull(f"{self.in_flight} sequences are running or waiting, at most {self.limit} may be")
        self.in_flight += sequences
        self._empty.clear()
        try:
            yield
        finally:
            self.in_flight -= sequences
            if not self.in_flight:
                self._empty.set()
