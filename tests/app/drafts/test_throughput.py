"""What a benchmark would measure, from the steps of a server that it would see."""

from __future__ import annotations

import pytest

from app.drafts.estimate import Speedup
from app.drafts.step_times import StepTimes
from app.drafts.throughput import Served, Throughput
from plugin.drafts.steps import StepStats
from tests.app.drafts.closed_loop import Traffic, estimated, measured


def flat(k: int, rows: int) -> float:
    """A GPU's step: the weights are read once, whatever the batch."""
    return 0.010 + (0.004 + 0.0001 * k if k else 0.0) + 0.00002 * k * rows


def growing(k: int, rows: int) -> float:
    """A small CPU's step: each token costs."""
    return 0.004 + 0.001 * rows + (0.002 + 0.0002 * (k + 1) * rows if k else 0.0)


TRAFFIC = {
    "one client, long answers": Traffic(1, 200, flat, 0.005, 0.02),
    "one client, short answers": Traffic(1, 30, growing, 0.02, 0.03),
    "four clients, short answers": Traffic(4, 44, growing, 0.03, 0.005),
    "four clients, slow ones": Traffic(4, 44, flat, 0.08, 0.01),
    "four clients who take the processor": Traffic(4, 44, growing, 0.03, 0.002, crowded=3.0),
    "four clients, long prompts": Traffic(4, 44, flat, 0.01, 0.06),
    "a queue": Traffic(12, 60, growing, 0.02, 0.01, max_num_seqs=4),
    "a large batch": Traffic(32, 100, flat, 0.03, 0.005),
    "a draft that seldom helps": Traffic(4, 60, growing, 0.02, 0.01, rates=(0.3,) * 7),
}


@pytest.mark.parametrize("k", [3, 7])
@pytest.mark.parametrize("traffic", TRAFFIC.values(), ids=TRAFFIC.keys())
def test_the_overall_speedup_is_what_a_benchmark_measures(traffic: Traffic, k: int) -> None:
    """Within 10 %, whatever the traffic: against the same traffic served at K and without a draft."""
    known = estimated(traffic, k).snapshot()
    found = known.speedup(k) if known is not None else None
    assert isinstance(found, Speedup)
    assert found.overall == pytest.approx(measured(traffic, k), rel=0.1)


def test_control_decode_steps_alone_promise_too_much() -> None:
    for name in ("one client, short answers", "four clients, slow ones", "four clients, long prompts"):
        known = estimated(TRAFFIC[name], 7).snapshot()
        found = known.speedup(7) if known is not None else None
        assert isinstance(found, Speedup) and found.value > 1.2 * measured(TRAFFIC[name], 7), name


def steps(*found: StepStats) -> tuple[Throughput, StepTimes]:
    throughput, times = Throughput(), StepTimes()
    for step in found:
        times.add(step)
        throughput.add(step, times)
    return throughput, times


def test_all_time_counts_but_that_for_want_of_requests() -> None:
    decode = [StepStats(3, 2, 0.01, wall=0.01, tokens=5)] * 16
    admission = StepStats(3, 2, None, wall=0.05, idle=0.02, tokens=2)
    pause = StepStats(3, 2, None, wall=5.03, idle=5.0, tokens=2)
    found = steps(*decode, admission, *decode, pause)
    served = found[0].served(3, 2, found[1])
    assert served == Served(pytest.approx(0.32 + 0.05 + 0.03), 68, 164, 2, 0.01)
    assert served.speedup(0.01 / 0.008) == pytest.approx((164 * 0.004 + 0.06) / (68 * 0.005 + 0.06))
    assert found[0].served(0, 2, found[1]) is None


def test_other_traffic_is_left_out() -> None:
    one, four = StepStats(3, 1, 0.01, wall=0.01), StepStats(3, 4, 0.03, wall=0.03)
    throughput, times = steps(*[one] * 256, *[four] * 512)
    served = throughput.served(3, 4, times)
    assert served is not None and served.places == 4
    assert (served.rows, served.seconds) == (4 * 512, pytest.approx(0.03 * 512))
