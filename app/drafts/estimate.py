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

from app.drafts.recent_drafts import Curve, RecentDrafts
from app.drafts.step_times import Seconds, StepTimes
from app.drafts.throughput import Served, Throughput
from plugin.drafts.steps import StepStats

SPEEDUP_DRAFTS = 50
"""Drafts that a speed-up stands on at least."""
ENOUGH_DRAFTS = 200
"""Drafts that a recommendation stands on at least."""
DOUBT = 0.1
"""By how much another K may be faster, two standard errors taken, where the present one is recommended."""

Origin = Literal["live", "stored"]
Baseline = Mapping[int, Seconds]
"""Stored durations of a step without a draft, by batch size as `batch_of` says it; `when` on this process's clock."""


def speedup(length: float, baseline_s: float, step_s: float) -> float:
    """The one formula: tokens of a step, times its duration without a draft, over its duration with one."""
    return length * baseline_s / step_s


def _range(ratio: float, relative_error: float) -> tuple[float, float]:
    """Two standard errors below and above, of the logarithm: what is a ratio never falls to 0."""
    factor = math.exp(2 * relative_error)
    return ratio / factor, ratio * factor


@dataclass(frozen=True, slots=True)
class Speedup:
    """`value` is of decode steps, `low` and `high` lie two standard errors away; `overall` is of what was served, with
    all the time that no draft shortens. `age_s` is that of the newest time of a step without a draft.
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
    served: Mapping[int, Served]
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
        served = self.served.get(k)
        overall = value if served is None else served.speedup(step.value / without.value)
        shared = step.shared if live is None else 0.0
        off = math.hypot(self.curve.error(k), without.relative_error, step.relative_error, shared)
        return Speedup(value, *_range(value, off), overall, origin, self.now - without.when)

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
        """The fastest K, while `now` is served: another where it has proven faster, none where one may be much faster.
        What may be a little faster changes with every measurement, and is not worth a change.
        """
        at_once = "one request at a time" if self.batch == 1 else f"up to {self.batch} requests at once"
        if now not in self.seconds:
            return Recommendation(None, f"no step at K = {now} was timed yet, with {at_once}")
        gains = {
            k: gain
            for k in self.ks
            if k != now
            and (gain := self.gain(k, now)) is not None
            and (gain.drafts is None or gain.drafts >= ENOUGH_DRAFTS)
        }
        if not gains:
            return Recommendation(
                None,
                f"K = {now} alone can be judged yet, with {at_once}; another needs {ENOUGH_DRAFTS} drafts to go by",
            )
        compared = f"of the measured K = {', '.join(map(str, sorted([now, *gains])))}, with {at_once}"
        ranges = {k: _range(gain.ratio, gain.error / gain.ratio) for k, gain in gains.items()}

        def known(k: int) -> str:
            low, high = ranges[k]
            return f"K = {k} gives {low:.2f} to {high:.2f} times the tokens/s of K = {now}"

        if proven := [k for k, (low, _) in ranges.items() if low > 1]:
            best = max(proven, key=lambda k: gains[k].ratio)
            return Recommendation(best, f"{compared}, {known(best)}")
        most = max(ranges, key=lambda k: ranges[k][1])
        if ranges[most][1] > 1 + DOUBT:
            return Recommendation(None, f"{compared}, the fastest is not certain: {known(most)}")
        return Recommendation(now, f"{compared}, it is the fastest or nearly so: {known(most)}")


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
        self._throughput = Throughput()
        self._only = None if len(self.ks) == self.ks[-1] + 1 else self.ks[-1]

    def add(self, step: StepStats) -> None:
        """One sound engine step."""
        self.times.add(step)
        self._drafts.add(self.times.steps, step.drafted)
        self._throughput.add(step, self.times)

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
        if (batch := self.times.present(self.baseline)) is None:
            return None
        since = 0 if steps is None else self.times.steps - steps
        served = {k: self._throughput.served(k, batch, self.times) for k in self.ks}
        return Snapshot(
            ks=self.ks,
            batch=batch,
            curve=self._drafts.curve(self.ks[-1], since, self._only),
            seconds=self.times.durations(self.ks, batch, since),
            stored=self.baseline.get(batch),
            served={k: of for k, of in served.items() if of is not None},
            now=self._clock(),
        )
