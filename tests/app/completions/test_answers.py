"""What a served request answers, in one piece and as a stream: both must say the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine import GenerateRequest
from tests.app.conftest import complete, events, served, text_of
from tests.app.fake_engine import BOS, EOS, FakeEngine, tokens

pytestmark = pytest.mark.anyio


def saying(text: str, end: bool = True) -> Any:
    """A script that says a text and then ends by EOS."""
    return lambda request, sample: [*tokens(text), *([EOS] if end else [])]


async def both(engine: FakeEngine, **fields: Any) -> tuple[dict[str, Any], list[Any]]:
    """The same request in one piece and streamed."""
    async with served(engine) as client:
        whole = await complete(client, **fields)
        stream = await complete(client, stream=True, **fields)
        assert whole.status_code == stream.status_code == 200, (whole.text, stream.text)
        return whole.json(), events(stream)


async def test_wire_format() -> None:
    """The whole body and the whole stream, byte for byte but for id and time."""
    engine = FakeEngine(script=saying("ab"), k=3)
    async with served(engine) as client:
        fixed = {"request_id": "x", "max_tokens": 5}
        body = (await complete(client, **fixed)).json()
        created = body["created"]
        spec = {
            "mean_acceptance_length": 1.0,
            "draft_acceptance_rate": 0.0,
            "acceptance_histogram": [3, 0, 0, 0],
            "num_spec_steps": 3,
            "num_accepted_draft_tokens": 0,
            "num_draft_tokens": 9,
            "num_spec_tokens": 3,
            "steps_by_k": {"3": 3},
        }
        times = {
            "time_to_first_token_ms": 2.0,
            "generation_time_ms": 10.0,
            "queue_time_ms": 1.0,
            "mean_itl_ms": 5.0,
            "tokens_per_second": 250.0,
        }
        usage = {
            "prompt_tokens": 3,
            "completion_tokens": 3,
            "total_tokens": 6,
            "completion_tokens_details": {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 9},
        }
        assert body == {
            "id": "cmpl-x",
            "object": "text_completion",
            "created": created,
            "model": "demo",
            "choices": [
                {"index": 0, "text": "ab", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
            ],
            "usage": usage,
            "metrics": {**times, "speculative_decoding": spec},
        }
        stream = await complete(client, stream=True, stream_options={"include_usage": True}, **fixed)
        begun = events(stream)[0]["created"]
        assert created <= begun <= created + 60
        head = (
            f'data: {{"id":"cmpl-x","object":"text_completion","created":{begun},"model":"demo","choices":['
        )
        first, second, third, last, done, empty = stream.text.split("\n\n")
        tail = '"stop_reason":null}],"usage":null}'
        assert first == head + '{"index":0,"text":"a","logprobs":null,"finish_reason":null,' + tail
        assert second == head + '{"index":0,"text":"b","logprobs":null,"finish_reason":null,' + tail
        assert third == head + '{"index":0,"text":"","logprobs":null,"finish_reason":"stop",' + tail
        assert last.startswith(head + '],"usage":{"prompt_tokens":3,"completion_tokens":3,"total_tokens":6,')
        assert (done, empty) == ("data: [DONE]", "")
        assert events(stream)[-1]["metrics"] == body["metrics"]
        assert events(stream)[-1]["usage"] == body["usage"]


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_alone(stream: bool) -> None:
    """Echo with max_tokens 0 gives the prompt and asks the engine nothing (A03)."""
    engine = FakeEngine()
    async with served(engine) as client:
        options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        reply = await complete(client, "abc", echo=True, max_tokens=0, **options)
        chunks = events(reply) if stream else [reply.json()]
        assert text_of(chunks) == "abc"
        assert chunks[-1]["usage"]["completion_tokens"] == 0
        assert [c["finish_reason"] for chunk in chunks for c in chunk["choices"]][-1] == "length"
        assert not engine.seen


async def test_echo_precedes_the_text() -> None:
    whole, chunks = await both(FakeEngine(script=saying("def")), prompt=["abc", "xyz"], echo=True)
    assert [c["text"] for c in whole["choices"]] == ["abcdef", "xyzdef"]
    assert [text_of(chunks, i) for i in (0, 1)] == ["abcdef", "xyzdef"]


async def test_echo_shows_what_truncation_left() -> None:
    whole, _ = await both(
        FakeEngine(script=saying("!")),
        prompt="abcdef",
        echo=True,
        truncate_prompt_tokens=3,
        truncation_side="left",
    )
    assert whole["choices"][0]["text"] == "def!"
    assert whole["usage"]["prompt_tokens"] == 3


async def test_logprobs_zero_shows_the_chosen_token_alone() -> None:
    """In one piece and streamed (A09)."""
    whole, chunks = await both(FakeEngine(), max_tokens=3, temperature=0, logprobs=0)
    logprobs = whole["choices"][0]["logprobs"]
    assert len(logprobs["token_logprobs"]) == 3 and all(x <= 0 for x in logprobs["token_logprobs"])
    assert all(len(top) == 1 for top in logprobs["top_logprobs"])
    streamed = [c["logprobs"] for chunk in chunks for c in chunk["choices"]]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [x for part in streamed for x in part[name]] == logprobs[name]


async def test_tokens_as_ids() -> None:
    whole, _ = await both(FakeEngine(), max_tokens=2, logprobs=1, return_tokens_as_token_ids=True)
    first, second = tokens(" a")
    assert whole["choices"][0]["logprobs"]["tokens"] == [f"token_id:{first}", f"token_id:{second}"]


@pytest.mark.parametrize("per_step", [1, 2, 5, 100])
@pytest.mark.parametrize("stop", ["lo w", ["\u0002never", "world", "lo w"], ["x1", "x2", "x3", "x4", "lo w"]])
async def test_stop_strings(stop: Any, per_step: int) -> None:
    """The text ends just before the first stop string, and no chunk shows any of it (A11, A13)."""
    whole, chunks = await both(FakeEngine(script=saying("hello world"), per_step=per_step), stop=stop)
    assert whole["choices"][0]["text"] == text_of(chunks) == "hel"
    assert whole["choices"][0]["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert whole["choices"][0]["stop_reason"] == chunks[-1]["choices"][0]["stop_reason"] == "lo w"


@pytest.mark.parametrize("limit", [100, 4])
async def test_characters_are_whole(limit: int) -> None:
    """A chunk never holds a replacement character for what may still be completed (A15)."""
    whole, chunks = await both(FakeEngine(script=saying("A👩‍👩‍👧é中")), max_tokens=limit)
    text = text_of(chunks)
    assert text == whole["choices"][0]["text"]
    assert ("�" in text) == (limit == 4)
    assert all("�" not in c["text"] for chunk in chunks[:-1] for c in chunk["choices"])


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(st.characters(codec="utf-8"), min_size=1, max_size=40),
    stop=st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=4), max_size=3),
    per_step=st.integers(1, 9),
    limit=st.integers(1, 60),
)
def test_stream_and_body_agree(text: str, stop: list[str], per_step: int, limit: int) -> None:
    """Whatever the text, the stops, the steps and the limit: one text, and nothing of a stop string in it."""
    engine = FakeEngine(script=saying(text), per_step=per_step)
    whole, chunks = asyncio.run(both(engine, stop=stop, max_tokens=limit))
    shown = whole["choices"][0]["text"]
    assert text_of(chunks) == shown
    assert not any(s in shown for s in stop)
    assert whole["usage"]["completion_tokens"] <= limit


async def test_ends() -> None:
    """EOS, limit, stop string, and EOS on the last permitted token (A48)."""
    for fields, reason in (
        ({"max_tokens": 50}, "stop"),
        ({"max_tokens": 3}, "length"),
        ({"stop": "l"}, "stop"),
        ({"max_tokens": 6}, "stop"),
    ):
        whole, chunks = await both(FakeEngine(script=saying("hello")), **fields)
        assert whole["choices"][0]["finish_reason"] == reason
        assert chunks[-1]["choices"][0]["finish_reason"] == reason


async def test_special_tokens_are_not_shown() -> None:
    """BOS and EOS leave no trace in the text, with ignore_eos too (A49)."""
    script = lambda request, sample: [BOS, *tokens("a"), EOS, *tokens("b"), EOS]  # noqa: E731
    whole, _ = await both(FakeEngine(script=script))
    assert whole["choices"][0]["text"] == "a"
    whole, _ = await both(FakeEngine(script=script), ignore_eos=True, max_tokens=8)
    assert (whole["choices"][0]["text"], whole["usage"]["completion_tokens"]) == ("ab", 8)


async def test_limit_and_its_alias() -> None:
    """`max_completion_tokens` is an alias, and max_tokens wins (A42)."""
    for fields, count in (
        ({}, 16),
        ({"max_completion_tokens": 40}, 40),
        ({"max_completion_tokens": 40, "max_tokens": 5}, 5),
        ({"max_completion_tokens": 40, "max_tokens": None}, 40),
    ):
        whole, _ = await both(FakeEngine(), ignore_eos=True, **fields)
        assert whole["usage"]["completion_tokens"] == count


async def test_limit_is_cut_to_the_decoder_budget() -> None:
    """Separate budgets; the prompt's length takes nothing from the output (C10)."""
    engine = FakeEngine(max_model_len=64, script=lambda request, sample: tokens("x" * 100))
    for prompt in ([5] * 10, [5] * 60):
        whole, _ = await both(engine, prompt=prompt, max_tokens=100, ignore_eos=True)
        assert whole["usage"]["completion_tokens"] == 63
        assert whole["choices"][0]["finish_reason"] == "length"


async def test_choices_of_a_batch() -> None:
    """Choice prompt * n + sample, each with its own text, ids, counts and metrics; usage is the sum."""

    def script(request: GenerateRequest, sample: int) -> list[int]:
        return tokens(f"{len(request.encoder_ids)}.{sample}")

    fields: dict[str, Any] = {
        "prompt": ["a", "bb"],
        "n": 2,
        "max_tokens": 3,
        "return_token_ids": True,
        "seed": 1,
    }
    whole, chunks = await both(FakeEngine(script=script, k=2), **fields)
    assert [c["text"] for c in whole["choices"]] == ["2.0", "2.1", "3.0", "3.1"]
    assert [text_of(chunks, i) for i in range(4)] == ["2.0", "2.1", "3.0", "3.1"]
    assert [c["index"] for c in whole["choices"]] == [0, 1, 2, 3]
    assert [len(c["prompt_token_ids"]) for c in whole["choices"]] == [2, 2, 3, 3]
    assert [c["token_ids"] for c in whole["choices"]] == [tokens(t) for t in ("2.0", "2.1", "3.0", "3.1")]
    assert all(c["metrics"]["speculative_decoding"]["num_spec_steps"] == 3 for c in whole["choices"])
    assert whole["metrics"]["speculative_decoding"]["num_spec_steps"] == 12
    assert "time_to_first_token_ms" not in whole["metrics"]
    assert whole["usage"]["prompt_tokens"] == 5 and whole["usage"]["completion_tokens"] == 12


async def test_ids_are_used_as_given() -> None:
    """Nothing is added to ids; text gets its special tokens unless told otherwise (C17)."""
    engine = FakeEngine(script=saying("x"))
    async with served(engine) as client:
        for prompt, more, ids in (
            ([7, 8], {}, [7, 8]),
            ([BOS, 7], {}, [BOS, 7]),
            ("a", {}, [BOS, *tokens("a")]),
            ("a", {"add_special_tokens": False}, tokens("a")),
        ):
            reply = await complete(client, prompt, **more)
            assert list(engine.seen[-1].encoder_ids) == ids
            assert reply.json()["usage"]["prompt_tokens"] == len(ids)


async def test_same_request_id_twice() -> None:
    """The ids inside the engine differ, so that two requests of one name do not meet (A34)."""
    engine = FakeEngine(script=lambda request, sample: tokens(f"{request.encoder_ids[-1]}"))
    async with served(engine) as client:
        replies = await asyncio.gather(
            *[
                client.post("/v1/completions", json={"prompt": [i], "max_tokens": 2, **body}, headers=head)
                for i in (10, 11)
                for body, head in (({}, {"X-Request-Id": "same"}), ({"request_id": "same"}, {}))
            ]
        )
        assert [r.json()["choices"][0]["text"] for r in replies] == ["10", "10", "11", "11"]
        assert all(r.json()["id"] == "cmpl-same" for r in replies)
        assert len({request.id for request in engine.seen}) == 4


@pytest.mark.parametrize("level", ["none", "summary", "detailed"])
async def test_request_metrics(level: str) -> None:
    """The request's field overrules the setting."""
    async with served(FakeEngine(k=3, per_step=2), request_metrics="none") as client:
        body = (await complete(client, max_tokens=6, request_metrics=level)).json()
        spec = body.get("metrics", {}).get("speculative_decoding")
        assert (spec is None) == (level == "none")
        if spec is not None:
            assert spec["num_accepted_draft_tokens"] == 3 and spec["num_draft_tokens"] == 9
            assert spec.get("per_step_accepted") == ([1, 1, 1] if level == "detailed" else None)
            assert body["usage"]["completion_tokens_details"] == {
                "accepted_prediction_tokens": 3,
                "rejected_prediction_tokens": 6,
            }
