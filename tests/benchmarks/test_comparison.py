"""Served and teacher-forced acceptance: rates by position, the end of answers, what decides."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from app.bench.errors import BenchError
from benchmarks.comparison import Comparison, Request, Walk

WALK = Walk(anchors=20, counted=[20, 18, 16], correct=[15, 9, 12], matched=[15, 8, 2], tokens=60, greedy=59)


def _requests(*accepted: int) -> list[Request]:
    """Twenty steps: as many as `accepted` says at each position are accepted there."""
    runs = [sum(count > number for count in accepted) for number in range(20)]
    return [Request([2], [5] * (1 + sum(1 + run for run in runs)), runs)]


def _compare(*accepted: int, **sums: Any) -> Comparison:
    return Comparison.of(_requests(*accepted), 20, accepted, replace(WALK, **sums))


def test_rates_and_differences() -> None:
    comparison = _compare(16, 8, 3)
    first, second, third = comparison.positions
    assert (first.acceptance, first.forced_acceptance, first.accuracy) == (0.8, 0.75, 0.75)
    assert (second.acceptance, second.forced_acceptance, second.accuracy) == (0.4, 0.4, 0.5)
    assert (third.acceptance, third.forced_acceptance, third.accuracy) == (0.15, 0.1, 0.75)
    assert all(position.inside_acceptance == position.acceptance for position in comparison.positions)
    assert comparison.difference == pytest.approx(0.05)
    assert (comparison.tokens, comparison.greedy) == (60, 59)


def test_what_is_accepted_behind_the_end_is_told_apart() -> None:
    """Seven tokens: the first is an anchor, two are accepted, one is the verifier's own and again an anchor, three are
    accepted of which the last is the end token, and two of the five lie behind it."""
    request = Request([2], [11, 12, 13, 14, 15, 16, 1], [2, 5])
    assert request.inside() == [2, 3]
    walk = Walk(2, counted=[2] * 5, correct=[2] * 5, matched=[2, 2, 1, 0, 0], tokens=7, greedy=7)
    positions = Comparison.of([request], 2, [2, 2, 1, 1, 1], walk).positions
    assert [position.acceptance for position in positions] == [1, 1, 0.5, 0.5, 0.5]
    assert [position.inside_acceptance for position in positions] == [1, 1, 0.5, 0, 0]


def test_a_position_that_no_answer_reaches_has_no_accuracy() -> None:
    found = _compare(15, 8, 1, counted=[20, 18, 0], correct=[15, 9, 0], matched=[15, 8, 0])
    assert found.positions[2].accuracy is None


@pytest.mark.parametrize(("accepted", "code"), [(14, 0), (15, 0), (16, 0), (17, 1), (13, 1), (0, 1)])
def test_more_than_the_tolerance_at_position_0_is_exit_code_1(accepted: int, code: int) -> None:
    """Both ways; 16 of 20 against 15 of 20 is the tolerance itself."""
    assert _compare(accepted, 0, 0).exit_code(0.05) == code


def test_other_positions_do_not_decide() -> None:
    assert _compare(15, 0, 0).exit_code(0.0) == 0


@pytest.mark.parametrize("told", [5, 3], ids=["whole steps", "what is in the answer"])
def test_an_answer_may_leave_out_what_is_behind_its_end(told: int) -> None:
    """Seven tokens, of which the last step's third is the end token; the server counts the five that it accepted."""
    request = Request([2], [11, 12, 13, 14, 15, 16, 1], [2, told])
    walk = Walk(2, counted=[2] * 5, correct=[2] * 5, matched=[2, 2, 1, 0, 0], tokens=7, greedy=7)
    positions = Comparison.of([request], 2, [2, 2, 1, 1, 1], walk).positions
    assert [position.inside for position in positions] == [2, 2, 1, 0, 0]


@pytest.mark.parametrize(
    ("drafts", "accepted"), [(19, [3, 2, 1]), (21, [3, 2, 1]), (20, [3, 2, 3]), (20, [3, 2, 0])]
)
def test_other_counts_than_the_answers_tell_are_refused(drafts: int, accepted: list[int]) -> None:
    words = (
        f"the server counted {drafts} drafts and {accepted} accepted, its answers tell of 20 and [3, 2, 1]"
    )
    with pytest.raises(BenchError, match=re.escape(words)):
        Comparison.of(_requests(3, 2, 1), drafts, accepted, WALK)


def test_nothing_drafted_is_nothing_to_compare() -> None:
    with pytest.raises(BenchError, match="counted 0 drafts"):
        Comparison.of([Request([2], [1], [])], 0, [0, 0, 0], WALK)


@pytest.mark.parametrize(
    "reply",
    [
        {"choices": [{"text": "x"}], "metrics": {"speculative_decoding": {"per_step_accepted": [1]}}},
        {"choices": [{"prompt_token_ids": [2], "token_ids": [1]}]},
        {"choices": [{"prompt_token_ids": [2], "token_ids": [1]}], "metrics": {"speculative_decoding": None}},
    ],
)
def test_a_server_that_tells_no_steps_is_refused(reply: dict[str, Any]) -> None:
    with pytest.raises(BenchError, match="T5GEMMA_REQUEST_METRICS=detailed"):
        Request.from_reply(reply)


def test_an_answer_without_steps_has_none() -> None:
    """One token long: it ended before anything was drafted."""
    spec = {"speculative_decoding": {"per_step_accepted": None}}
    reply = {"choices": [{"prompt_token_ids": [2], "token_ids": [1]}], "metrics": spec}
    assert Request.from_reply(reply).accepted == []


def test_anchors_follow_the_accepted_tokens() -> None:
    assert Request([2], [5, 6, 7, 8, 9, 1], [0, 2, 0]).anchors() == [1, 2, 5]
    assert Request([2], [5, 6, 7, 8, 9, 1], [0, 2, 5]).anchors() == [1, 2, 5], (
        "the last step ran past the end"
    )
    assert Request([2], [1], []).anchors() == []


@pytest.mark.parametrize(
    ("accepted", "words"),
    [
        ([0, 2], "2 steps lead to token 5 of an answer of 6"),
        ([0, 2, 0, 0], "4 steps lead to token 7 of an answer of 6"),
        ([], "0 steps lead to token 1 of an answer of 6"),
    ],
)
def test_steps_that_do_not_lead_to_the_end_are_refused(accepted: list[int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Request([2], [5, 6, 7, 8, 9, 1], accepted).anchors()
