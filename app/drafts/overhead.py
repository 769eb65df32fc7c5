"""Time that no draft shortens: admissions, and the way from the engine to its clients and back, for each output token.

A step's duration leaves both out. What is served is faster by less than its decode steps are, the more so the shorter
the answers; this is what lies between the two.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from app.drafts.step_times import batch_of
from plugin.drafts.steps import StepStats

_IDLE_S, _IDLE_STEPS = 0.1, 5
"""A gap between two steps that is longer than this, and than so many of them, is for want of requests."""
_CHUNK = 64
"""Steps that are forgotten together."""


class Overhead:
    """Of the last two thousand steps."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: float | None = None
        self._typical: dict[int, float] = {}
        self._chunks: deque[list[float]] = deque(maxlen=32)

    def add(self, step: StepStats) -> None:
        """One engine step, when the front end hears of it."""
        now, batch = self._clock(), batch_of(step.num_requests)
        gap, self._last = (None if self._last is None else now - self._last), now
        decoding = step.seconds
        if decoding is not None:
            self._typical[batch] = decoding
        elif step.drafts or step.num_requests > 1:  # others went on beside the one that was admitted
            decoding = self._typical.get(batch)
        else:
            decoding = 0.0
        typical = self._typical.get(batch, 0.0)
        if gap is None or decoding is None or gap > max(_IDLE_S, _IDLE_STEPS * typical):
            return
        if not self._chunks or self._chunks[-1][0] >= _CHUNK:
            self._chunks.append([0, 0.0, 0])
        chunk = self._chunks[-1]
        chunk[0] += 1
        chunk[1] += gap - decoding
        chunk[2] += step.num_requests + sum(sum(accepted) for _, accepted in step.drafts.values())

    @property
    def seconds_a_token(self) -> float:
        """0 without traffic."""
        tokens = sum(chunk[2] for chunk in self._chunks)
        return max(0.0, sum(chunk[1] for chunk in self._chunks) / tokens) if tokens else 0.0
