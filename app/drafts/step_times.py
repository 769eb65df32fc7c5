"""How long an engine step takes at each K and batch size: medians of short bursts, so that a pause in one step says
nothing, each K's beside those of another that were taken just before and after it, so that a machine that is slower for
a while, or has other work to do, is so for both.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import hypot
from statistics import fmean, median, stdev

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
_COMMON = 0.25
"""Share of them that may stand for the others."""
_MEDIAN = 1.2533
"""Standard error of a median over that of a mean, of normally distributed values."""
_QUARTILES = 1.349
"""Quartile distance over standard deviation, likewise."""
_NEAR = 2 * _SPAN_STEPS
"""Steps between two bursts that were taken at the same time."""
_PRESENT = 4
"""Bursts that tell how long a step takes now."""


def batch_of(num_requests: int) -> int:
    """The largest batch size that is timed together with this one: 1, 2, 3, 4, 6, 8, 12, 16, 24, 32 and so on."""
    if num_requests <= 4:
        return num_requests
    above = 1 << (num_requests - 1).bit_length()
    return above * 3 // 4 if num_requests <= above * 3 // 4 else above


@dataclass(frozen=True, slots=True)
class Seconds:
    """Duration of a step, its standard error, how many steps it is the median of, and when the newest was taken: on
    the clock, and as the number of the step. `shared` is a relative error that all K have in common, and that is in no
    ratio of theirs.
    """

    value: float
    error: float
    steps: int
    when: float
    at: int = 0
    shared: float = 0.0

    @property
    def relative_error(self) -> float:
        return self.error / self.value


@dataclass(slots=True)
class _Burst:
    span: int
    at: int = 0
    when: float = 0.0
    samples: deque[float] = field(default_factory=lambda: deque(maxlen=_LONGEST))
    _summary: tuple[float, float] | None = None

    def add(self, seconds: float) -> None:
        self.samples.append(seconds)
        self._summary = None

    @property
    def summary(self) -> tuple[float, float]:
        """Median, and its relative standard error; kept, for both are read for every pair that the burst is in."""
        if self._summary is None:
            ordered, n = sorted(self.samples), len(self.samples)
            middle = median(ordered)
            off = _MEDIAN * (ordered[(3 * n) // 4] - ordered[n // 4]) / _QUARTILES / n**0.5
            self._summary = middle, off / middle
        return self._summary

    @property
    def seconds(self) -> float:
        return self.summary[0]

    @property
    def relative_error(self) -> float:
        return self.summary[1]


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
        burst.add(step.seconds)

    @property
    def batch(self) -> int | None:
        """The present batch size, as `batch_of` says it: the commonest of the last steps."""
        return Counter(self._batches).most_common(1)[0][0] if self._batches else None

    def present(self, stored: Collection[int] = ()) -> int | None:
        """The commonest of the last steps' batch sizes at which a step without a draft was timed, or is among `stored`;
        without such a one, or where it is rare, `batch`.
        """
        for batch, count in Counter(self._batches).most_common():
            known = batch in stored or self.seconds(0, batch) is not None
            if known and count >= _COMMON * len(self._batches):
                return batch
        return self.batch

    def batches(self, k: int) -> list[int]:
        """Batch sizes in which a step at K = k was timed."""
        return sorted(batch for each, batch in self._bursts if each == k)

    def seconds(self, k: int, batch: int, since: int = 0) -> Seconds | None:
        """Duration of a step at K and batch size: the median of the bursts that ended after step `since`."""
        if not (found := self._found(k, batch, since)):
            return None
        values = [burst.seconds for burst in found]
        error = _error(values, [burst.relative_error * burst.seconds for burst in found])
        return _seconds(found, median(values), error)

    def durations(self, ks: Iterable[int], batch: int, since: int = 0) -> dict[int, Seconds]:
        """Durations of a step at each K as they are now: of one K, timed lately and often, by its newest bursts, of any
        other by how many times as long its bursts lasted as those of the former around them.
        """
        found = {k: bursts for k in ks if (bursts := self._found(k, batch, since))}
        if not found:
            return {}
        newest = max(bursts[-1].at for bursts in found.values())
        lately = [k for k, bursts in found.items() if bursts[-1].at >= newest - _NEAR]
        first = max(lately, key=lambda k: (len(found[k]), found[k][-1].at))
        present = found[first][-_PRESENT:]
        now = median(burst.seconds for burst in present)
        shared = fmean(burst.relative_error for burst in present) / len(present) ** 0.5
        durations = {}
        for k, bursts in found.items():
            ratio, error = (1.0, 0.0) if k == first else _beside(bursts, found[first])
            durations[k] = _seconds(bursts, now * ratio, now * error, shared)
        return durations

    def _found(self, k: int, batch: int, since: int) -> list[_Burst]:
        """Bursts that say something and ended after step `since`, in order."""
        bursts = self._bursts.get((k, batch), ())
        return [burst for burst in bursts if burst.at >= since and len(burst.samples) >= BURST]


def _seconds(bursts: Sequence[_Burst], value: float, error: float, shared: float = 0.0) -> Seconds:
    steps = sum(len(burst.samples) for burst in bursts)
    return Seconds(value, error, steps, bursts[-1].when, bursts[-1].at, shared)


def _error(values: Sequence[float], errors: Sequence[float]) -> float:
    """Standard error of the median of `values`, which have `errors` of their own: never less than they scatter."""
    n = len(values)
    own = fmean(errors) / n**0.5
    if n < 4:
        return max(own, (max(values) - min(values)) / 2)
    return max(own, _MEDIAN * stdev(values) / n**0.5)


def _beside(bursts: Sequence[_Burst], others: Sequence[_Burst]) -> tuple[float, float]:
    """How many times as long steps of `bursts` lasted as those of `others`, and the standard error of that: each burst
    of the rarer against those just before and after it.
    """
    rarer, more = sorted((bursts, others), key=len)
    pairs = [_around(burst, more) for burst in rarer]
    pairs = [pair for pair in pairs if pair[0] <= _NEAR] or pairs
    ratios = [ratio for _, ratio, _ in pairs]
    value = median(ratios)
    error = _error(ratios, [error for _, _, error in pairs])
    return (value, error) if rarer is bursts else (1 / value, error / value**2)


def _around(burst: _Burst, others: Sequence[_Burst]) -> tuple[int, float, float]:
    """Steps to the nearest of `others`, the burst's duration over theirs around it, and the error of that. What they
    differ by among themselves is what the machine did meanwhile: before and after, or, where the burst lies before or
    behind all of them, the two that are nearest.
    """
    by_distance = sorted(others, key=lambda one: abs(one.at - burst.at))
    nearest = by_distance[0]
    far = max(abs(nearest.at - burst.at), _NEAR)
    side = nearest.at > burst.at
    beyond = next((one for one in by_distance if (one.at > burst.at) != side), None)
    theirs, second = nearest.seconds, by_distance[1] if len(others) > 1 else nearest
    if beyond is not None and abs(beyond.at - burst.at) <= far:
        theirs, second = (nearest.seconds + beyond.seconds) / 2, beyond
    drift = (nearest.seconds - second.seconds) / 2 / theirs
    off = hypot(burst.relative_error, nearest.relative_error, drift)
    return abs(nearest.at - burst.at), burst.seconds / theirs, off * burst.seconds / theirs
