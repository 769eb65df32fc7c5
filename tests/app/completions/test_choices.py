"""A stream's plain choices, written without a model, are what the model says."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.completions.choices import ChoiceWriter
from app.completions.prompts import EncoderPrompt
from app.completions.protocol import CompletionRequest
from app.completions.reply import Choice, plain, wire
from app.completions.run import Job
from app.engine import RequestTiming, Sample, Sampling, SpecMetrics, Step

TEXT = st.text(st.characters(codec="utf-8"))


@given(
    index=st.integers(0, 2**20),
    text=TEXT,
    finish=st.sampled_from([None, "stop", "length", "abort", "error", "repetition"]),
    stop=st.none() | st.integers(0, 2**31) | TEXT,
)
def test_plain_choices_byte_for_byte(index: int, text: str, finish: Any, stop: int | str | None) -> None:
    choice = Choice(index=index, text=text, logprobs=None, finish_reason=finish, stop_reason=stop)
    assert plain(index, Sample(index, text, (1,), None, finish, stop)) == wire(choice)


def writer(**fields: Any) -> ChoiceWriter:
    request = CompletionRequest(prompt="Hi", **fields)
    job = Job("id", "demo", 0, [EncoderPrompt([2, 7], "Hi")], Sampling(n=request.n), True)
    return ChoiceWriter(request, job, "summary")


def test_both_ways_say_and_count_the_same() -> None:
    """Plain or adorned: `write_json` is the JSON of `write`, and usage and metrics agree."""
    steps = [
        Step([Sample(0, 'a\n"é', (5, 6))]),
        Step([Sample(0, "", ())]),
        Step(
            [Sample(0, "b", (7,), None, "stop", "b", SpecMetrics(3, (1, 1, 0, 0), 6))],
            True,
            RequestTiming(1, 2, 3),
        ),
    ]
    for fields in ({}, {"return_token_ids": True}, {"echo": True}, {"n": 2}):
        one, other = writer(**fields), writer(**fields)
        for step in steps:
            choices = one.write(0, step)
            assert other.write_json(0, step) == [(choice.index, wire(choice)) for choice in choices]
        assert (one.tokens, one.metrics()) == (other.tokens, other.metrics())
        assert one.completion_tokens == 3
