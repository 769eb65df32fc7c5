"""Which K the steps have: windows within their share, and `auto` against every fixed K on a simulated engine."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import pytest

from app.drafts.controller import AUTO_SHARE, Controller
from app.drafts.estimate import Estimator
from plugin.drafts.steps import StepStats
from tests.app.drafts.simulated import MAX_K, PAUSES, Phase, best_fixed, fixed_s, run, step_s

GOOD = (0.95, 0.93, 0.9, 0.88, 0.86, 0.85, 0.84)
FADING = (0.8, 0.6, 0.4, 0.3, 0.2, 0.2, 0.2)
BAD = (0.1,) * 7
TOKENS = 30_000


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize(
    "phases",
    [
        [Phase(TOKENS, GOOD), Phase(TOKENS // 3, BAD)],
        [Phase(TOKENS // 3, BAD), Phase(TOKENS, GOOD)],
        [Phase(TOKENS // 3, BAD)],
    ],
    ids=["acceptance falls in the middle", "acceptance rises in the middle", "no draft pays"],
)
def test_auto_against_the_best_fixed_k(phases: list[Phase], batch: int) -> None:
    """Never worse than 0.97 of it, found by trying all; where acceptance changes, better than any."""
    phases = [Phase(phase.tokens * batch, phase.rates, batch) for phase in phases]
    found, _ = run(phases, MAX_K, auto=True)
    best_s = min(fixed_s(phases, k) for k in range(MAX_K + 1))
    assert best_s / found.seconds > (1.0 if len(phases) > 1 else 0.97)
    assert 1 <= found.changes <= 4


@pytest.mark.parametrize("seed", range(3))
def test_auto_finds_a_k_between(seed: int) -> None:
    """The later positions seldom count: neither 0 nor the largest is best."""
    phases = [Phase(TOKENS, FADING)]
    best = best_fixed(phases)
    found, controller = run(phases, MAX_K, auto=True, seed=seed)
    assert 0 < best < MAX_K and abs(controller.k - best) <= 1
    assert fixed_s(phases, best) / found.seconds > 0.97


@pytest.mark.parametrize("batch", [4, 16])
def test_what_promises_much_is_tried_at_once(batch: int) -> None:
    """In runs of two thousand steps, too, where the share of windows would come to two or three."""
    phases = [Phase(4000 * batch, FADING, batch)]
    best_s = fixed_s(phases, best_fixed(phases))
    assert median(best_s / run(phases, MAX_K, auto=True, seed=seed)[0].seconds for seed in range(3)) > 0.96


@pytest.mark.parametrize("batch", [1, 4, 16])
def test_what_is_lost_before_the_first_decision(batch: int) -> None:
    """At most 200 drafts at the K that it starts with, the first two dozen steps and a window; then the share."""
    phases = [Phase(1000 * batch, BAD, batch)]
    found, controller = run(phases, MAX_K, auto=True)
    slower = step_s(MAX_K, batch) / step_s(0, batch) - 1
    late = max(24, 200 / batch) * slower * step_s(0, batch) * PAUSES
    assert controller.k == 0
    assert found.seconds < 1.03 * (fixed_s(phases, 0) + late)


def test_what_auto_costs_where_nothing_changes() -> None:
    """It stays, and its windows take their share and no more, counted in steps of the chosen K's duration."""
    found, controller = run([Phase(TOKENS, GOOD)], MAX_K, auto=True)
    assert (controller.k, found.changes) == (MAX_K, 0)
    assert 0 < controller.measuring_steps / found.steps < AUTO_SHARE * 1.1


def test_dear_windows_are_rarer() -> None:
    """At a batch of 16 a step at the largest K takes five times as long: the share is one of time."""
    found, controller = run([Phase(TOKENS * 4, BAD, 16)], MAX_K, auto=True)
    assert controller.k == 0
    assert controller.measuring_steps / found.steps < AUTO_SHARE / 2


def test_floor_and_ceiling() -> None:
    assert run([Phase(TOKENS // 2, BAD)], MAX_K, auto=True, floor=2)[1].k == 2
    _, controller = run([Phase(TOKENS, GOOD)], 1, auto=True, ceiling=3)
    assert controller.k == 3


def test_a_small_difference_needs_many_drafts() -> None:
    """4 % are no reason after 200 drafts; they are after thousands."""

    def duration(k: int, batch: int) -> float:
        return {0: 1.0, 7: 1.04}.get(k, 2.0)

    few, _ = run([Phase(260, (0.0,) * 7)], MAX_K, auto=True, noise=0.01, duration=duration)
    many, controller = run([Phase(20_000, (0.0,) * 7)], MAX_K, auto=True, noise=0.01, duration=duration)
    assert (few.changes, many.changes, controller.k) == (0, 1, 0)


def test_a_fixed_k_stays_and_its_baseline_is_measured() -> None:
    phases = [Phase(TOKENS, FADING)]
    found, controller = run(phases, 3, share=0.01)
    estimator = controller._estimator
    known = estimator.snapshot()
    assert controller.k == 3 and known is not None
    assert 0.005 < controller.measuring_steps / found.steps < 0.011
    estimate = known.speedup(3)
    assert not isinstance(estimate, str) and estimate.origin == "live"
    true = fixed_s(phases, 0) / fixed_s(phases, 3)
    assert abs(estimate.value / true - 1) < 0.05
    assert estimate.low < estimate.value < estimate.high < estimate.value * 1.3
    assert known.recommendation(3).k in (3, best_fixed(phases))


def test_without_a_share_no_window_opens() -> None:
    estimator = Estimator(range(MAX_K + 1))
    controller = Controller(estimator, 3)
    for _ in range(3000):
        step = StepStats(3, 1, 0.01, {3: (1, (1, 1, 0))})
        estimator.add(step)
        controller.step(step)
        assert controller.wanted == 3


def windows(controller: Controller, estimator: Estimator, steps: int, may: bool = True) -> set[int]:
    """Every K that was wanted while so many steps were served as wanted."""
    found = set()
    for _ in range(steps):
        k = controller.wanted
        step = StepStats(k, 1, 0.01 + 0.001 * k, {k: (1, (1,) * k)} if k else {})
        estimator.add(step)
        controller.step(step, may)
        found.add(controller.wanted)
    return found


def test_no_window_while_none_may_open() -> None:
    estimator = Estimator(range(MAX_K + 1))
    controller = Controller(estimator, MAX_K, share=0.01)
    assert windows(controller, estimator, 2000, may=False) == {MAX_K}
    assert windows(controller, estimator, 2000) == {0, MAX_K}


def test_an_open_window_gives_way_to_what_is_chosen() -> None:
    estimator = Estimator(range(MAX_K + 1))
    controller = Controller(estimator, MAX_K, share=0.01)
    while controller.wanted == MAX_K:
        windows(controller, estimator, 1)
    controller.choose(3, auto=False)
    assert controller.wanted == controller.k == 3 and not controller.auto


def test_a_window_that_sees_nothing_ends() -> None:
    """Steps that admit a request have no duration: after some of them the window is given up."""
    estimator = Estimator(range(MAX_K + 1))
    controller = Controller(estimator, MAX_K, share=0.01)
    while controller.wanted == MAX_K:
        windows(controller, estimator, 1)
    count = 0
    while controller.wanted != MAX_K:
        controller.step(StepStats(0, 1))
        count += 1
    assert 8 < count < 50


def test_a_short_block_is_compared_with_no_draft_alone() -> None:
    """K = 3 of a short block says nothing of K = 1."""
    estimator = Estimator((0, 3))
    controller = Controller(estimator, 3, share=0.01)
    assert windows(controller, estimator, 4000) == {0, 3}
    known = estimator.snapshot()
    assert known is not None and set(known.seconds) == {0, 3}


def slow(k: int, batch: int) -> float:
    return 3 * step_s(k, batch)


@pytest.mark.parametrize("duration", [step_s, slow])
def test_decisions_do_not_depend_on_the_unit_of_time(duration: Callable[[int, int], float]) -> None:
    found, controller = run([Phase(TOKENS // 3, BAD)], MAX_K, auto=True, duration=duration)
    assert (controller.k, found.changes) == (0, 1)
