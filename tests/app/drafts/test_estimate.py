"""Durations, acceptance by position and what follows from them, against plain arithmetic."""

from __future__ import annotations

import math
import random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.drafts.estimate import Estimator, Snapshot, Speedup, speedup
from app.drafts.recent_drafts import RecentDrafts
from app.drafts.step_times import BURST, Seconds, StepTimes, batch_of
from plugin.drafts.steps import StepStats

Drafts = list[tuple[int, int]]
"""K and accepted tokens of each."""


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@given(st.integers(1, 4096))
def test_batches(size: int) -> None:
    """None is left out, and none is timed with one that is half as large."""
    assert size <= batch_of(size) < max(2 * size, 2) and batch_of(batch_of(size)) == batch_of(size)


def test_some_batches() -> None:
    assert [batch_of(n) for n in (1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 17, 25, 33)] == [
        *(1, 2, 3, 4, 6, 6, 8, 12, 12, 16, 24, 32, 48)
    ]


def drafts_of(found: Drafts) -> RecentDrafts:
    recent = RecentDrafts()
    for at, (k, accepted) in enumerate(found):
        recent.add(at, {k: (1, tuple(int(i < accepted) for i in range(k)))})
    return recent


@given(st.lists(st.integers(0, 5), min_size=1, max_size=100))
def test_every_draft_speaks_for_shorter_ones(runs: list[int]) -> None:
    """`L(k)` from drafts of 5 tokens is the mean of what a verification of k would have kept."""
    curve = drafts_of([(5, accepted) for accepted in runs]).curve(7)
    assert curve.max_k == 5
    for k in range(6):
        mean = sum(1 + min(accepted, k) for accepted in runs) / len(runs)
        assert curve.length(k) == pytest.approx(mean)
        assert curve.backing(k) == (len(runs) if k else None)


def test_positions_behind_k_come_from_the_drafts_that_reached_them() -> None:
    """Half of the drafts of 2 get through, of those of 4 that got through two thirds get one further."""
    found = [(2, 2), (2, 0)] * 30 + [(4, 4), (4, 2), (4, 3), (4, 0)] * 3
    curve = drafts_of(found).curve(4)
    through = (30 + 9) / 72
    assert curve.rates == pytest.approx((through, through, through * 6 / 9, through * 6 / 9 * 3 / 6))
    assert curve.drafts == (72, 72, 12, 12)
    assert drafts_of(found).curve(4, only=4).rates == pytest.approx((9 / 12, 9 / 12, 6 / 12, 3 / 12))


def test_old_drafts_are_forgotten() -> None:
    curve = drafts_of([(3, 3)] * 2000 + [(3, 0)] * 500).curve(3)
    assert curve.length(3) == 1 and 400 <= curve.drafts[0] < 500
    assert drafts_of([(3, 3)] * 20).curve(3, since=100).max_k == 0


def test_the_error_is_that_of_repeated_samples() -> None:
    """Standard errors of L(5) and of L(2) / L(5) against those of 300 runs of 300 drafts."""
    chance = random.Random(1)

    def accepted() -> int:
        return next((i for i in range(5) if chance.random() > 0.8), 5)

    curves = [drafts_of([(5, accepted()) for _ in range(300)]).curve(5) for _ in range(300)]
    for values, told in (
        ([curve.length(5) for curve in curves], [curve.error(5) for curve in curves]),
        (
            [curve.length(2) / curve.length(5) for curve in curves],
            [curve.error(2, over=5) for curve in curves],
        ),
    ):
        mean = sum(values) / 300
        spread = (sum((value - mean) ** 2 for value in values) / 300) ** 0.5 / mean
        assert sum(told) / 300 == pytest.approx(spread, rel=0.15)


def test_step_times_are_medians_of_bursts() -> None:
    """A burst of each span counts once, with its newest steps; what is no duration counts nothing."""
    clock = Clock()
    times = StepTimes(clock)
    for seconds in [*range(1, 9), 100]:
        times.add(StepStats(3, 1, float(seconds)))
        times.add(StepStats(3, 1, None))
    assert times.seconds(3, 1) == Seconds(5.0, pytest.approx(times.seconds(3, 1).error), 9, 100.0, 17)  # type: ignore[union-attr]
    assert times.seconds(3, 2) is None and times.seconds(0, 1) is None
    times.begin_span()
    clock.now = 200.0
    for _ in range(BURST):
        times.add(StepStats(3, 1, 7.0))
    found = times.seconds(3, 1)
    assert found is not None and (found.value, found.steps, found.when) == (median([5.0, 7.0]), 17, 200.0)
    assert times.seconds(3, 1, since=18) == Seconds(7.0, 0.0, 8, 200.0, 26)


def test_a_burst_that_was_cut_short_goes_on() -> None:
    times = StepTimes(Clock())
    for _ in range(2):
        times.begin_span()
        for _ in range(BURST // 2):
            times.add(StepStats(0, 4, 0.5))
    assert times.seconds(0, 4) is not None and times.batch == 4


def test_durations_beside_each_other() -> None:
    """A machine that is slower for a while is so for every K: what was timed in its bad hours says nothing of K."""
    times = StepTimes(Clock())
    for slower in (1, 5, 5, 5, 1, 2, 1):
        for k, seconds, steps in ((7, 0.012, 40), (0, 0.01, BURST), (7, 0.012, 40)):
            times.begin_span()
            for _ in range(steps):
                times.add(StepStats(k, 1, slower * seconds))
    found = times.durations(range(8), 1)
    assert sorted(found) == [0, 7] and found[7].value == pytest.approx(
        0.018
    )  # the newest: 1 and 2 times as long
    assert found[0].value / found[7].value == pytest.approx(0.01 / 0.012)
    assert found[0].relative_error == pytest.approx(0, abs=1e-9)
    apart = [times.seconds(k, 1) for k in (0, 7)]
    assert apart[0].relative_error > 0.2  # type: ignore[union-attr]


def timed(*bursts: tuple[int, float], steps: int = BURST) -> StepTimes:
    """A span for each K and seconds of a step."""
    times = StepTimes(Clock())
    for k, seconds in bursts:
        times.begin_span()
        for _ in range(steps):
            times.add(StepStats(k, 1, seconds))
    return times


@pytest.mark.parametrize(
    ("bursts", "ratio", "error"),
    [
        pytest.param([(7, 0.01), (0, 0.02), (7, 0.03)], 1, 0.5, id="between two that differ"),
        pytest.param([(7, 0.01), (7, 0.03), (0, 0.03)], 1, 1 / 3, id="behind two that differ"),
        pytest.param(
            [(3, 0.01)] * 5 + [(0, 0.012), (0, 0.036), (0, 0.036)], 3.6, 1.2, id="while it slows down"
        ),
        pytest.param(
            [(7, 0.01), (0, 0.01), (7, 0.01), (0, 0.02), (7, 0.02)], 4 / 3 / 2 + 0.5, 1 / 6, id="two pairs"
        ),
    ],
)
def test_a_machine_that_changes_leaves_doubt(
    bursts: list[tuple[int, float]], ratio: float, error: float
) -> None:
    found = timed(*bursts).durations(range(8), 1)
    one, other = found[0], found[max(found)]
    assert one.value / other.value == pytest.approx(ratio)
    assert (one.error / other.value, other.error) == (pytest.approx(error), 0)


def test_durations_are_those_of_now() -> None:
    """Of the K that runs, however long another ran before."""
    times = timed(*[(3, 0.01)] * 10, *[(7, 0.03)] * 2, steps=512)
    assert times.durations((3, 7), 1)[7].value == pytest.approx(0.03)


def test_what_all_durations_share_is_in_no_ratio() -> None:
    """But in a comparison with a stored one."""
    chance, times = random.Random(0), StepTimes(Clock())
    for _ in range(12):
        for k in (0, 7):
            times.begin_span()
            for _ in range(BURST):
                times.add(StepStats(k, 1, 0.01 * chance.gauss(1, 0.2)))
    found = times.durations((0, 7), 1)
    level, other = found[7], found[0]
    assert level.error == 0 < level.shared == other.shared < 0.1
    assert 0 < other.relative_error < 0.1


def test_durations_of_bursts_that_lie_far_apart() -> None:
    """Are compared where there are no nearer ones."""
    times = StepTimes(Clock())
    for k, steps in ((0, BURST), (7, 3000)):
        times.begin_span()
        for _ in range(steps):
            times.add(StepStats(k, 1, 0.01 + 0.001 * k))
    assert times.durations((0, 7), 1)[0].value == pytest.approx(0.01)
    assert times.durations((0, 7), 1, since=BURST + 1).keys() == {7}


def served(estimator: Estimator, k: int, seconds: float, accepted: int, steps: int = 100) -> None:
    for _ in range(steps):
        taken = tuple(int(i < accepted) for i in range(k))
        estimator.add(StepStats(k, 1, seconds, {k: (1, taken)} if k else {}))
    estimator.times.begin_span()


def test_speedup_is_the_formula() -> None:
    clock = Clock()
    estimator = Estimator(range(8), clock)
    assert estimator.snapshot() is None
    served(estimator, 7, 0.02, 3)
    known = estimator.snapshot()
    assert known is not None and "no stored baseline" in str(known.speedup(7))
    served(estimator, 0, 0.01, 0)
    clock.now += 5
    served(estimator, 7, 0.02, 3)
    known = estimator.snapshot()
    assert known is not None
    assert known.speedup(7) == Speedup(speedup(4, 0.01, 0.02), 2.0, 2.0, 2.0, "live", 5.0)
    assert known.speedup(0) == "K is 0: nothing is drafted"
    assert known.speedup(3) == "no step in batches of up to 1 was timed yet at K = 3"


def test_a_stored_baseline_stands_in() -> None:
    """Until live traffic tells; its origin and age are said."""
    clock = Clock()
    estimator = Estimator(range(8), clock)
    estimator.baseline = {1: Seconds(0.03, 0.003, 100, clock.now - 3600)}
    served(estimator, 7, 0.02, 3)
    known = estimator.snapshot()
    assert known is not None
    found = known.speedup(7)
    assert isinstance(found, Speedup) and (found.origin, found.age_s) == ("stored", 3600)
    assert found.value == pytest.approx(6) and found.low == pytest.approx(6 / math.exp(0.2))
    served(estimator, 0, 0.01, 0, 16)
    served(estimator, 7, 0.02, 3)
    again = estimator.snapshot()
    assert again is not None and again.speedup(7) == Speedup(2.0, 2.0, 2.0, 2.0, "live", 0.0)


def test_too_few_drafts_say_nothing() -> None:
    estimator = Estimator(range(8), Clock())
    served(estimator, 7, 0.02, 3, 20)
    known = estimator.snapshot()
    assert known is not None
    assert known.speedup(7) == "20 drafts of 7 tokens were verified lately; 50 are needed"
    assert known.recommendation(7).k is None


def test_recommendation() -> None:
    """The fastest of those measured, and why; unknown with the reason."""
    estimator = Estimator(range(8), Clock())
    served(estimator, 7, 0.02, 2, 300)
    known = estimator.snapshot()
    assert known is not None
    alone = known.recommendation(7)
    assert alone.k is None and "K = 7 alone can be judged yet" in alone.reason
    served(estimator, 0, 0.01, 0)
    served(estimator, 7, 0.02, 2, 300)
    known = estimator.snapshot()
    assert known is not None
    assert known.recommendation(7).k == 7
    assert known.recommendation(7).reason.endswith(
        "it is the fastest or nearly so: K = 0 gives 0.67 to 0.67 times the tokens/s of K = 7"
    )
    served(estimator, 2, 0.012, 2)
    served(estimator, 7, 0.02, 2, 300)
    known = estimator.snapshot()
    assert known is not None and known.guess(4, 7) == pytest.approx(0.02 / (0.012 + 0.4 * 0.008))
    found = known.recommendation(7)
    assert found.k == 2 and "of the measured K = 0, 2, 7" in found.reason
    assert "with one request at a time, K = 2 gives 1.67 to 1.67 times the tokens/s of K = 7" in found.reason
    assert known.recommendation(3).k is None


def test_what_may_be_much_faster_is_not_told_from_what_is() -> None:
    """Nothing is recommended while another K may be more than a tenth faster; a little changes nothing."""
    known = {7: Seconds(0.01, 0.0, 99, 0.0), 0: Seconds(0.003, 0.0003, 9, 0.0)}
    curve = drafts_of([(7, 2)] * 300).curve(7)
    snapshot = Snapshot(tuple(range(8)), 4, curve, known, None, {}, 0.0)
    doubtful = snapshot.recommendation(7)
    assert doubtful.k is None and doubtful.reason == (
        "of the measured K = 0, 7, with up to 4 requests at once, the fastest is not certain: K = 0 gives 0.91 to 1.36"
        " times the tokens/s of K = 7"
    )
    known[0] = Seconds(0.0033, 0.00008, 9, 0.0)
    assert snapshot.recommendation(7).k == 7
    known[0] = Seconds(0.003, 0.00008, 9, 0.0)
    assert snapshot.recommendation(7).k == 0
