"""Acceptance arithmetic against a plain list of steps."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.drafts import ledger as module
from app.drafts.ledger import BUCKETS, Counts, Ledger
from plugin.drafts.steps import StepStats


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def step(ledger: Ledger, k: int, accepted: int) -> None:
    """One draft of one sequence."""
    ledger.record(StepStats(k, 1, None, {k: (1, (1,) * accepted + (0,) * (k - accepted))}))


def test_numbers_of_the_design() -> None:
    """Runs of 3, 2, 1, 0 accepted of 7 (F12): mean 1.5 without and 2.5 with the verifier's own token, rate 6/28."""
    ledger = Ledger(60)
    for accepted in (3, 2, 1, 0):
        step(ledger, 7, accepted)
    counts = ledger.lifetime(7)
    assert counts.mean_acceptance_length == 2.5 and counts.acceptance_rate == 6 / 28
    assert [counts.rate(i) for i in range(4)] == [3 / 4, 2 / 4, 1 / 4, 0]
    assert [counts.conditional_rate(i) for i in range(5)] == [3 / 4, 2 / 3, 1 / 2, 0, None]


@given(st.lists(st.integers(0, 5).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k)))))
def test_sums(steps: list[tuple[int, int]]) -> None:
    """For each K: per-position sums give the total, and fall with the position (B24); no other K's are in them."""
    ledger = Ledger(60)
    for k, accepted in steps:
        step(ledger, k, accepted)
    assert ledger.ks == sorted({k for k, _ in steps})
    for k in range(6):
        counts, mine = ledger.lifetime(k), [a for each, a in steps if each == k]
        assert counts.drafts == len(mine)
        assert sum(counts.accepted) == counts.accepted_tokens == sum(mine)
        assert sum(counts.proposed) == counts.draft_tokens == k * len(mine)
        assert counts.accepted == sorted(counts.accepted, reverse=True)
        assert counts.to_json() == ledger.window(k).to_json()


def test_drafts_of_several_lengths_in_one_step() -> None:
    """After a change of K, or where a grammar refused the end of a draft."""
    ledger = Ledger(60)
    ledger.record(StepStats(3, 3, None, {7: (1, (1, 1, 1, 1, 0, 0, 0)), 3: (2, (2, 1, 0)), 0: (1, ())}))
    assert (ledger.lifetime(7).mean_acceptance_length, ledger.lifetime(3).mean_acceptance_length) == (5, 2.5)
    assert (ledger.lifetime(0).drafts, ledger.lifetime(0).mean_acceptance_length) == (1, 1)
    assert ledger.ks == [0, 3, 7]


def test_a_position_that_was_never_proposed_has_no_rate() -> None:
    """Null, not 0.0; where nobody counted proposals, as in the engine's series, a rate is told."""
    assert Counts(3, 4, 4, 2, proposed=[4, 0, 0], accepted=[2, 0, 0]).rate(1) is None
    assert Counts(3, 4, 4, 2, proposed=[4, 0, 0], accepted=[2, 0, 0]).conditional_rate(1) is None
    assert Counts(3, 4, 12, 2, accepted=[2, 0, 0]).rate(1) == 0
    assert Ledger(60).lifetime(2).to_json()["per_position"][1] == {
        "position": 1,
        "proposed": 0,
        "accepted": 0,
        "rate": None,
        "conditional_rate": None,
    }


def test_window_slides() -> None:
    clock = Clock()
    ledger = Ledger(60, clock)
    for second in range(120):
        clock.now = 1000 + second
        step(ledger, 2, 1)
    assert ledger.lifetime(2).drafts == 120
    assert abs(ledger.window(2).drafts - 60) <= 60 / BUCKETS
    clock.now += 30
    assert abs(ledger.window(2).drafts - 30) <= 60 / BUCKETS
    clock.now += 60
    assert ledger.window(2).drafts == 0 and ledger.window(2).acceptance_rate is None
    assert ledger.lifetime(2).drafts == 120


def test_window_stays_small() -> None:
    """Memory does not grow with traffic."""
    clock = Clock()
    ledger = Ledger(1, clock)
    for number in range(10_000):
        clock.now = 1000 + number / 100
        step(ledger, 2, 1)
    assert len(ledger._slices) <= BUCKETS + 1


@pytest.mark.parametrize(
    "numbers",
    [
        StepStats(2, 1, None, {2: (1, (1, -1))}),
        StepStats(2, 1, None, {2: (1, (math.nan, 0))}),  # type: ignore[arg-type]
        StepStats(2, 1, None, {2: (-1, (1,))}),
        StepStats(2, 1, None, {2: (math.inf, (1,))}),  # type: ignore[arg-type]
        StepStats(2, 1, None, {2: (1, (1, math.nan))}),  # type: ignore[arg-type]
        StepStats(2, 1, None, {2: (1, (1, 1, 1))}),
        StepStats(2, 1, None, {2: (1, (2, 1))}),
        StepStats(2, 2, None, {2: (2, (1, 2))}),
        StepStats(2, 1, None, {-1: (1, ())}),
        StepStats(-1, 1, None, {}),
        StepStats(2, 1, math.nan, {2: (1, (1, 1))}),
        StepStats(2, 1, -0.1, {2: (1, (1, 1))}),
    ],
)
def test_what_cannot_be_is_left_out(numbers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One NaN would stay in the sums for good: it is refused, counted and logged, and what follows counts (N21)."""
    ledger = Ledger(60)
    said: list[str] = []
    monkeypatch.setattr(module.log, "error", lambda text, *values: said.append(text % values))
    for _ in range(9):
        assert not ledger.record(numbers)
    assert ledger.refused == 9 and len(said) == 4
    step(ledger, 2, 1)
    assert ledger.lifetime(2).to_json() == ledger.window(2).to_json()
    assert (ledger.lifetime(2).drafts, ledger.lifetime(2).accepted_tokens) == (1, 1)
