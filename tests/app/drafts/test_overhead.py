"""What a benchmark would measure, from the steps that it would see."""

from __future__ import annotations

import pytest

from app.drafts.estimate import Estimator, Speedup
from app.drafts.overhead import Overhead
from plugin.drafts.steps import StepStats


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def request(
    estimator: Estimator, clock: Clock, k: int, batch: int, tokens: int = 40, admission_s: float = 0.03
) -> float:
    """A batch that is admitted in one step and then decoded, half of each draft accepted; its seconds."""
    began = clock.now
    clock.now += 0.03
    estimator.add(StepStats(k, batch, None))
    made, seconds = 1, 0.01 + 0.001 * k
    while made < tokens:
        clock.now += seconds
        hits = k // 2
        drafts = {k: (batch, (batch,) * hits + (0,) * (k - hits))} if k else {}
        estimator.add(StepStats(k, batch, seconds, drafts))
        made += 1 + hits
    return clock.now - began


@pytest.mark.parametrize("batch", [1, 4])
def test_the_overall_speedup_is_that_of_whole_requests(batch: int) -> None:
    clock = Clock()
    estimator = Estimator(range(8), clock)
    times = {k: [request(estimator, clock, k, batch) for _ in range(20)][-1] for k in (0, 6)}
    for _ in range(20):
        request(estimator, clock, 6, batch)
    known = estimator.snapshot()
    found = known.speedup(6) if known is not None else None
    assert isinstance(found, Speedup)
    assert found.value == pytest.approx(4 * 0.01 / 0.016)
    assert (
        found.overall == pytest.approx(times[0] / times[6], rel=0.08) and found.overall < 0.96 * found.value
    )


def test_waiting_for_requests_is_no_overhead() -> None:
    clock = Clock()
    overhead = Overhead(clock)
    for gap in (0.01,) * 100 + (5.0,) + (0.01,) * 100:
        clock.now += gap
        overhead.add(StepStats(0, 1, 0.01))
    assert overhead.seconds_a_token == pytest.approx(0, abs=1e-9)
    assert Overhead(clock).seconds_a_token == 0
