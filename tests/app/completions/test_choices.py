"""Choices as they are written: without a model what the model says, one by one, and the body around them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.completions.choices import ChoiceWriter
from app.completions.metrics import speculative_decoding
from app.completions.prompts import EncoderPrompt
from app.completions.reply import Choice, LogprobWriter, plain, wire
from app.completions.request import CompletionRequest
from app.completions.run import Job
from app.engine import GenerateRequest, RequestTiming, Sample, Sampling, SpecMetrics, Step, TokenLogprob
from tests.app.conftest import complete, served
from tests.app.fake_engine import FakeEngine

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
    """What is written in short is what the models write, byte for byte, and usage and metrics agree."""
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
        other._plain = False
        for step in steps:
            assert list(one.write(0, step)) == list(other.write(0, step))
        assert (one.tokens, one.metrics()) == (other.tokens, other.metrics())
        assert one.completion_tokens == 3


def test_the_body_holds_its_choices() -> None:
    """Whatever stands in the head, and however many."""
    for model in ("demo", '"choices":[]', "\\"):
        one = writer()
        one._job = replace(one._job, model=model)
        for choices in ([], [b'{"index":0}'], [b'{"index":0,"text":"\\"choices\\":[]"}', b'{"index":1}']):
            told = json.loads(one.body(choices))
            assert told == {**json.loads(wire(one.last())), "choices": [*map(json.loads, choices)]}
            assert told["model"] == model and list(told)[-2:] == ["choices", "usage"]


@pytest.mark.anyio
async def test_large_answers_let_others_go_on() -> None:
    """One with many samples and logprobs takes seconds in all: each sample is made and written by itself."""
    made: list[int] = []
    others: list[int] = []

    def logprobs(index: int) -> Iterator[TokenLogprob]:
        made.append(index)
        yield TokenLogprob(5, "t", -1.0)

    class Many(FakeEngine):
        async def generate(self, request: GenerateRequest) -> AsyncGenerator[Step, None]:
            count = range(request.sampling.n)
            yield Step([Sample(i, "t", (5,), logprobs(i), "length") for i in count], True)

    async def other() -> None:
        while len(made) < 20:
            others.append(len(made))
            await asyncio.sleep(0)

    async with served(Many()) as client:
        task = asyncio.create_task(other())
        reply = await complete(client, n=20, temperature=1, logprobs=0)
        await task
    assert [choice["index"] for choice in reply.json()["choices"]] == made == list(range(20))
    assert set(others) >= set(range(1, 20))


@given(
    steps=st.lists(st.integers(0, 7).flatmap(lambda a: st.tuples(st.just(a), st.integers(a, 7)))),
    cut=st.integers(0, 7),
)
def test_what_was_accepted_behind_the_end(steps: list[tuple[int, int]], cut: int) -> None:
    """A slow count: one flag a token made, true if it was a draft's; the output is all of them but the last `cut`,
    which lie in the last step. Then nothing accepted is above the tokens received (N16). Steps without a draft, where K
    was 0, make one token and are none of the draft steps.
    """
    made = [False]
    for accepted, _ in steps:
        made += [True] * accepted + [False]
    kept = made[: len(made) - min(cut, steps[-1][0])] if steps else made
    accepted, drafted = [a for a, _ in steps], [k for _, k in steps]
    histogram = [sum(a == j and k > 0 for a, k in steps) for j in range(8)]
    spec = SpecMetrics(7, histogram, sum(drafted), accepted, drafted)
    found = spec.received(len(kept))
    assert sum(found.per_step_accepted) == sum(j * n for j, n in enumerate(found.histogram)) == sum(kept)
    assert (
        sum(found.histogram) == sum(k > 0 for k in drafted)
        and found.num_draft_tokens == spec.num_draft_tokens
    )
    assert sum(found.per_step_accepted) < len(kept)


def test_usage_counts_what_was_received() -> None:
    """`max_tokens: 2` had 7 accepted tokens of 2; each of several samples is cut for itself (N16)."""
    spec = SpecMetrics(7, (0, 0, 0, 0, 0, 0, 0, 1), 7, (7,), (7,))
    one = writer(n=3)
    for index in range(3):
        list(one.write(0, Step([Sample(index, "ab", (5, 6), None, "length", None, spec)], index == 2)))
    body = one.last()
    assert body.usage is not None and body.usage.completion_tokens_details is not None
    assert body.usage.completion_tokens == 6
    assert body.usage.completion_tokens_details.accepted_prediction_tokens == 3
    found = body.metrics and body.metrics.speculative_decoding
    assert found is not None
    assert (found.draft_acceptance_rate, found.mean_acceptance_length) == (3 / 21, 2.0)


def test_cached_tokens_are_prompts_not_samples() -> None:
    """Two prompts of 2 and 3 tokens, two samples each: one prompt was there already, and nothing is said before."""
    request = CompletionRequest(prompt=["Hi", "Ho!"], n=2)
    prompts = [EncoderPrompt([2, 7], "Hi"), EncoderPrompt([2, 7, 8], "Ho!")]
    made = ChoiceWriter(request, Job("id", "demo", 0, prompts, Sampling(n=2), True), "summary")
    before = made.last().usage
    assert before is not None
    assert before.model_fields_set == {"prompt_tokens", "completion_tokens", "total_tokens"}
    for prompt, cached in ((0, 0), (1, 3), (0, 0), (1, 3)):
        list(made.write(prompt, Step([Sample(0, "a", (5,))], cached_tokens=cached)))
    usage = made.last().usage
    assert usage is not None and usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens) == (5, 3)


@pytest.mark.parametrize("as_ids", [False, True])
def test_text_offset_is_a_place_in_the_text(as_ids: bool) -> None:
    """`<eos>` under ignore_eos and `token_id:N` are not in the text, and move no offset (N23)."""
    tokens = [
        TokenLogprob(5, "ab", -1.0),
        TokenLogprob(1, "<eos>", -1.0),
        TokenLogprob(6, "c", -1.0),
        TokenLogprob(7, "d", -1.0),
    ]
    assert LogprobWriter(as_ids, {1}).write(tokens).text_offset == [0, 2, 2, 3]
    assert LogprobWriter(as_ids).write(tokens).text_offset == [0, 2, 7, 8]


def test_the_ks_of_a_request() -> None:
    """Steps by K over all sequences, those without a draft under 0; the histogram is as long as the largest K asks."""
    one = SpecMetrics(7, (1, 0, 1, 0, 0, 0, 0, 0), 6, (0, 2, 0), (3, 3, 0))
    other = SpecMetrics(7, (0, 1, 0, 0, 0, 0, 0, 0), 1, (1, 0), (1, 0))
    found = speculative_decoding([one, other], "summary")
    assert found is not None and found.steps_by_k == {0: 2, 1: 1, 3: 2}
    assert (found.num_spec_tokens, found.acceptance_histogram, found.num_spec_steps) == (3, [1, 1, 1, 0], 3)
    none = speculative_decoding([SpecMetrics(7, (0,) * 8, 0)], "detailed")
    assert none is not None and (none.num_spec_tokens, none.steps_by_k) == (7, {})
