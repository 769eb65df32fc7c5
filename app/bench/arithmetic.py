"""The benchmark's numbers, pure: times of one request, spreads over many, speed-ups.

The names are the field's. TTFT: time to the first chunk with output. ITL: time between such chunks, each of which may
carry several tokens when a draft is at work. TPOT: time per output token after the first. Times in seconds unless the
name says `_ms`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

PERCENTILES = (50, 95, 99)


@dataclass(slots=True)
class ChunkTimes:
    """When a request was sent, when each of its chunks with output arrived, when a chunk said that the output was
    `finished`, and when the exchange was over, whatever came of it; seconds of one clock.
    """

    sent: float
    chunks: list[float] = field(default_factory=list)
    finished: float | None = None
    over: float | None = None

    @property
    def end(self) -> float | None:
        """When the last token was there: one without text, as the end token is, may come behind the last text. None
        without a chunk.
        """
        return max(self.chunks[-1], self.finished or 0.0) if self.chunks else None

    @property
    def ttft(self) -> float | None:
        """First chunk - sent; None without a chunk."""
        return self.chunks[0] - self.sent if self.chunks else None

    @property
    def latency(self) -> float | None:
        """End - sent; None without a chunk."""
        return self.end - self.sent if self.end is not None else None

    @property
    def itl(self) -> list[float]:
        """Times between neighbouring chunks: one fewer than there are chunks."""
        return [after - before for before, after in zip(self.chunks, self.chunks[1:], strict=False)]

    def tpot(self, tokens: int) -> float | None:
        """(end - first chunk) / (tokens - 1); None below two tokens."""
        return (self.end - self.chunks[0]) / (tokens - 1) if self.end is not None and tokens > 1 else None


def milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def spread_ms(seconds: Iterable[float | None]) -> dict[str, float] | None:
    """Mean and percentiles in milliseconds of the values that are there, interpolated linearly; None without any."""
    values = np.array([value for value in seconds if value is not None]) * 1000
    if not values.size:
        return None
    return {
        "mean": float(values.mean()),
        **{f"p{p}": float(np.percentile(values, p)) for p in PERCENTILES},
    }


def ratio(part: float | None, whole: float | None) -> float | None:
    """part / whole: a rate, or a speed-up of `part` over `whole`; None when either is missing or the whole is 0."""
    return part / whole if part is not None and whole else None


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Seconds that lie in at least one of the intervals (from, to)."""
    total, reached = 0.0, -math.inf
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
