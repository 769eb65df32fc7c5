"""Acceptance arithmetic against a plain list of steps."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.drafts import ledger as module
from app.drafts.ledger import BUCKETS, Ledger


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def step(ledger: Ledger, proposed: int, accepted: int) -> None:
    """One draft step of one sequence."""
    ledger.record(1, proposed, accepted, [1] * proposed, [1] * accepted)


def test_numbers_of_the_design() -> None:
    """Runs of 3, 2, 1, 0 accepted of 7 (F12): mean 1.5 without and 2.5 with the verifier's own token, rate 6/28."""
    ledger = Ledger(7, 60)
    for accepted in (3, 2, 1, 0):
        step(ledger, 7, accepted)
    counts = ledger.lifetime()
    assert counts.mean_acceptance_length == 2.5 and counts.acceptance_rate == 6 / 28
    assert [counts.rate(i) for i in range(4)] == [3 / 4, 2 / 4, 1 / 4, 0]
    assert [counts.conditional_rate(i) for i in range(5)] == [3 / 4, 2 / 3, 1 / 2, 0, None]


@given(st.lists(st.integers(0, 5).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p)))))
def test_sums(steps: list[tuple[int, int]]) -> None:
    """Per-position sums give the total, and fall with the position (B24)."""
    ledger = Ledger(5, 60)
    for proposed, accepted in steps:
        step(ledger, proposed, accepted)
    counts = ledger.lifetime()
    assert counts.drafts == len(steps)
    assert sum(counts.accepted) == counts.accepted_tokens == sum(a for _, a in steps)
    assert sum(counts.proposed) == counts.draft_tokens == sum(p for p, _ in steps)
    assert counts.accepted == sorted(counts.accepted, reverse=True)
    assert counts.to_json() == ledger.window().to_json()


def test_window_slides() -> None:
    clock = Clock()
    ledger = Ledger(2, 60, clock)
    for second in range(120):
        clock.now = 1000 + second
        step(ledger, 2, 1)
    assert ledger.lifetime().drafts == 120
    assert abs(ledger.window().drafts - 60) <= 60 / BUCKETS
    clock.now += 30
    assert abs(ledger.window().drafts - 30) <= 60 / BUCKETS
    clock.now += 60
    assert ledger.window().drafts == 0 and ledger.window().acceptance_rate is None
    assert ledger.lifetime().drafts == 120


def test_window_stays_small() -> None:
    """Memory does not grow with traffic."""
    clock = Clock()
    ledger = Ledger(2, 1, clock)
    for number in range(10_000):
        clock.now = 1000 + number / 100
        step(ledger, 2, 1)
    assert len(ledger._slices) <= BUCKETS + 1


@pytest.mark.parametrize(
    "numbers",
    [
        (1, 2, -1, [1, 1], []),
        (1, 2, math.nan, [1, 1], []),
        (-1, 2, 1, [1, 1], [1]),
        (1, math.inf, 1, [1, 1], [1]),
        (1, 2, 1, [1, 1], [math.nan]),
        (1, 2, 3, [1, 1], [1, 1, 1]),
    ],
)
def test_what_cannot_be_is_left_out(numbers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One NaN would stay in the sums for good: it is refused, counted and logged, and what follows counts (N21)."""
    ledger = Ledger(2, 60)
    said: list[str] = []
    monkeypatch.setattr(module.log, "error", lambda text, *values: said.append(text % values))
    for _ in range(9):
        ledger.record(*numbers)
    assert ledger.refused == 9 and len(said) == 4
    step(ledger, 2, 1)
    assert ledger.lifetime().to_json() == ledger.window().to_json()
    assert (ledger.lifetime().drafts, ledger.lifetime().accepted_tokens) == (1, 1)
