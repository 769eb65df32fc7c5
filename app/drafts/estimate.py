"""What the draft is worth, from what the engine does anyway: `speedup(k) = L(k) * t_0 / t_k`.

`L(k)` is the mean number of tokens of a step at K = k, `t_k` the duration of such a step at the present batch size, and
`t_0` that of a step without a draft: from short windows at K = 0 on live traffic, else from a stored benchmark. What
cannot be known is None, and a sentence says why.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from app.drafts.overhead import Overhead
from app.drafts.recent_drafts import Curve, RecentDrafts
from app.drafts.step_times import Seconds, StepTimes
from plugin.drafts.steps import StepStats

SPEEDUP_DRAFTS = 50
"""Drafts that a speed-up stands on at least."""
ENOUGH_DRAFTS = 200
"""Drafts that a recommendation stands on at least."""

Origin = Literal["live", "stored"]
Baseline = Mapping[int, Seconds]
"""Stored durations of a step without a draft, by batch size as `batch_of` says it; `when` on this process's clock."""


def speedup(
    length: float, baseline_s: float, step_s: float, batch: int = 1, overhead_s: float = 0.0
) -> float:
    """The one formula: tokens of a step, times its duration without a draft, over its duration with one. With
    `overhead_s`, what each of a batch's tokens takes beside, the time for a token without a draft over that with one.
    """
    return (baseline_s / batch + overhead_s) / (step_s / length / batch + overhead_s)


@dataclass(frozen=True, slots=True)
class Speedup:
    """`value` is of decode steps, `low` and `high` lie two standard errors away; `overall` is with the time that no
    draft shortens. `age_s` is that of the newest time of a step without a draft.
    """

    value: float
    low: float
    high: float
    overall: float
    origin: Origin
    age_s: float


@dataclass(frozen=True, slots=True)
class Gain:
    """Tokens/s at one K over those at another, both measured; `error` is its standard error, `drafts` what it stands
    on (None: no draft bears on it).
    """

    ratio: float
    error: float
    drafts: int | None


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The fastest K and why, or None and why not."""

    k: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known at one moment of steps in batches of up to `batch`: acceptance, and durations by K."""

    ks: tuple[int, ...]
    batch: int
    curve: Curve
    seconds: Mapping[int, Seconds]
    stored: Seconds | None
    overhead_s: float
    now: float

    def speedup(self, k: int) -> Speedup | str:
        """Tokens/s at K = k over no draft, or why that is not known."""
        if not k:
            return "K is 0: nothing is drafted"
        backing = (self.curve.backing(k) or 0) if k <= self.curve.max_k else 0
        if backing < SPEEDUP_DRAFTS:
            return f"{backing} drafts of {k} tokens were verified lately; {SPEEDUP_DRAFTS} are needed"
        live, step = self.seconds.get(0), self.seconds.get(k)
        origin: Origin = "stored" if live is None else "live"
        without = live or self.stored
        if step is None or without is None:
            missing = "at K = 0, and there is no stored baseline" if without is None else f"at K = {k}"
            return f"no step in batches of up to {self.batch} was timed yet {missing}"
        length = self.curve.length(k)
        value = speedup(length, without.value, step.value)
        overall = speedup(length, without.value, step.value, self.batch, self.overhead_s)
        off = 2 * value * math.hypot(self.curve.error(k), without.relative_error, step.relative_error)
        return Speedup(value, max(0.0, value - off), value + off, overall, origin, self.now - without.when)

    def gain(self, k: int, over: int) -> Gain | None:
        """Tokens/s at K = k over those at another; None where a part of it was not measured."""
        one, other = self.seconds.get(k), self.seconds.get(over)
        if one is None or other is None or max(k, over) > self.curve.max_k:
            return None
        ratio = self.curve.length(k) / self.curve.length(over) * other.value / one.value
        error = ratio * math.hypot(self.curve.error(k, over), one.relative_error, other.relative_error)
        return Gain(ratio, error, self.curve.backing(max(k, over)))

    def guess(self, k: int, over: int) -> float | None:
        """The ratio of `gain`, but where no step at K = k was timed its duration is read off the line between its
        neighbours. With K = 0 among them that is too short, so that what may pay gets tried; None without neighbours.
        """
        other, step_s = self.seconds.get(over), self._guessed_seconds(k)
        if other is None or step_s is None or max(k, over) > self.curve.max_k:
            return None
        return self.curve.length(k) / self.curve.length(over) * other.value / step_s

    def slowness(self, k: int, over: int) -> float:
        """Duration of a step at K = k over that of one at another; 1 where it is not known."""
        one, other = self._guessed_seconds(k), self._guessed_seconds(over)
        return one / other if one and other else 1.0

    def _guessed_seconds(self, k: int) -> float | None:
        if (known := self.seconds.get(k)) is not None:
            return known.value
        below = max((each for each in self.seconds if each < k), default=None)
        above = min((each for each in self.seconds if each > k), default=None)
        if below is None or above is None:
            return None
        low, high = self.seconds[below].value, self.seconds[above].value
        return low + (k - below) / (above - below) * (high - low)

    def recommendation(self, now: int) -> Recommendation:
        """The fastest K, while `now` is served."""
        if now not in self.seconds:
            return Recommendation(
                None, f"no step in batches of up to {self.batch} was timed yet at K = {now}"
            )
        found = {
            k: gain.ratio
            for k in self.ks
            if (gain := self.gain(k, now)) is not None
            and (gain.drafts is None or gain.drafts >= ENOUGH_DRAFTS)
        }
        others = sorted((k for k in found if k != now), key=lambda k: found[k])
        if not others:
            return Recommendation(
                None,
                f"in batches of up to {self.batch} K = {now} alone was timed with {ENOUGH_DRAFTS} drafts to go by",
            )
        best = others[-1]
        compared = f"of K = {', '.join(map(str, sorted(found)))} in batches of up to {self.batch}"
        if found[best] > 1:
            return Recommendation(
                best, f"{compared} it is the fastest, by {found[best] - 1:.1%} over K = {now}"
            )
        return Recommendation(
            now, f"{compared} it is the fastest; K = {best} has {found[best]:.1%} of its tokens/s"
        )


class Estimator:
    """Takes in the engine's steps; answers for the K in `ks`, 0 among them."""

    def __init__(self, ks: Sequence[int], clock: Callable[[], float] = time.monotonic) -> None:
        """`ks`: 0 to the block's largest; (0, K) where the block is as short as K, so that one K says nothing of
        another.
        """
        self.ks = tuple(ks)
        self.baseline: Baseline = {}
        self.times = StepTimes(clock)
        self._clock = clock
        self._drafts = RecentDrafts()
        self._overhead = Overhead(clock)
        self._only = None if len(self.ks) == self.ks[-1] + 1 else self.ks[-1]

    def add(self, step: StepStats) -> None:
        """One sound engine step."""
        self.times.add(step)
        self._drafts.add(self.times.steps, step.drafts)
        self._overhead.add(step)

    def baselines(self) -> dict[int, tuple[Seconds, Origin]]:
        """Duration of a step without a draft, by batch size: live where there is one, else stored."""
        found: dict[int, tuple[Seconds, Origin]] = {
            batch: (one, "stored") for batch, one in self.baseline.items()
        }
        for batch in self.times.batches(0):
            if (live := self.times.seconds(0, batch)) is not None:
                found[batch] = live, "live"
        return dict(sorted(found.items()))

    def snapshot(self, steps: int | None = None) -> Snapshot | None:
        """What is known now at the present batch size, from the last `steps` steps or from all that is kept; None
        before the first request.
        """
        if (batch := self.times.batch) is None:
            return None
        since = 0 if steps is None else self.times.steps - steps
        timed = {k: self.times.seconds(k, batch, since) for k in self.ks}
        return Snapshot(
            ks=self.ks,
            batch=batch,
            curve=self._drafts.curve(self.ks[-1], since, self._only),
            seconds={k: seconds for k, seconds in timed.items() if seconds is not None},
            stored=self.baseline.get(batch),
            overhead_s=self._overhead.seconds_a_token,
            now=self._clock(),
        )
