"""How long an engine step takes at each K and batch size: medians of short bursts, so that a pause in one step says
nothing, taken at the same times for every K, so that a machine that slows down does so for all of them.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median, stdev

from plugin.drafts.steps import StepStats

BURST = 8
"""Timed steps from which on a burst says something."""
_LONGEST = 32
"""Timed steps of a burst; the newest count."""
_KEPT = 16
"""Bursts of a K and batch size that are kept."""
_SPAN_STEPS = 512
"""Steps after which a new burst is begun though K was not changed."""
_RECENT = 256
"""Steps whose batch sizes make the present one."""
_MEDIAN = 1.2533
"""Standard error of a median over that of a mean, of normally distributed values."""
_QUARTILES = 1.349
"""Quartile distance over standard deviation, likewise."""


def batch_of(num_requests: int) -> int:
    """The largest batch size that is timed together with this one: 1, 2, 3, 4, 6, 8, 12, 16, 24, 32 and so on."""
    if num_requests <= 4:
        return num_requests
    above = 1 << (num_requests - 1).bit_length()
    return above * 3 // 4 if num_requests <= above * 3 // 4 else above


@dataclass(frozen=True, slots=True)
class Seconds:
    """Duration of a step, its standard error, how many steps it is the median of, and when the newest was taken: on
    the clock, and as the number of the step.
    """

    value: float
    error: float
    steps: int
    when: float
    at: int = 0

    @property
    def relative_error(self) -> float:
        return self.error / self.value


@dataclass(slots=True)
class _Burst:
    span: int
    at: int = 0
    when: float = 0.0
    samples: deque[float] = field(default_factory=lambda: deque(maxlen=_LONGEST))

    @property
    def error(self) -> float:
        ordered, n = sorted(self.samples), len(self.samples)
        return _MEDIAN * (ordered[(3 * n) // 4] - ordered[n // 4]) / _QUARTILES / n**0.5


class StepTimes:
    """Bursts by K and batch size. A span is the time between two changes of K; a K has one burst in each."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._bursts: dict[tuple[int, int], deque[_Burst]] = {}
        self._batches: deque[int] = deque(maxlen=_RECENT)
        self._span = self._span_began = 0
        self.steps = 0
        """Engine steps so far, of all engines."""

    def begin_span(self) -> None:
        """K changes now."""
        self._span, self._span_began = self._span + 1, self.steps

    def add(self, step: StepStats) -> None:
        """One engine step."""
        self.steps += 1
        if self.steps - self._span_began >= _SPAN_STEPS:
            self.begin_span()
        batch = batch_of(step.num_requests)
        self._batches.append(batch)
        if not step.seconds:
            return
        bursts = self._bursts.setdefault((step.k, batch), deque(maxlen=_KEPT))
        # A burst that was cut short goes on in the next span.
        if not bursts or (bursts[-1].span != self._span and len(bursts[-1].samples) >= BURST):
            bursts.append(_Burst(self._span))
        burst = bursts[-1]
        burst.span, burst.at, burst.when = self._span, self.steps, self._clock()
        burst.samples.append(step.seconds)

    @property
    def batch(self) -> int | None:
        """The present batch size, as `batch_of` says it: the commonest of the last steps."""
        return Counter(self._batches).most_common(1)[0][0] if self._batches else None

    def batches(self, k: int) -> list[int]:
        """Batch sizes in which a step at K = k was timed."""
        return sorted(batch for each, batch in self._bursts if each == k)

    def seconds(self, k: int, batch: int, since: int = 0) -> Seconds | None:
        """Duration of a step at K and batch size: the median of the bursts that ended after step `since`."""
        found = [
            burst
            for burst in self._bursts.get((k, batch), ())
            if burst.at >= since and len(burst.samples) >= BURST
        ]
        if not found:
            return None
        values, n = [median(burst.samples) for burst in found], len(found)
        error = sum(burst.error for burst in found) / n / n**0.5
        if n >= 4:
            error = max(error, _MEDIAN * stdev(values) / n**0.5)
        steps = sum(len(burst.samples) for burst in found)
        return Seconds(median(values), error, steps, found[-1].when, found[-1].at)
