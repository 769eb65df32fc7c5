"""A reply is put together from its events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.bench.arithmetic import ChunkTimes
from app.bench.reply import Reply, causes, in_words


def reply(*chunks: dict[str, Any], done: bool = True) -> Reply:
    made = Reply(ChunkTimes(0.0))
    for second, chunk in enumerate(chunks, 1):
        made.take(json.dumps(chunk), float(second))
    made.end(done, len(chunks) + 1.0)
    return made


def choice(text: str, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, **fields}]}


def test_a_whole_reply() -> None:
    usage = {"choices": [], "usage": {"completion_tokens": 3, "prompt_tokens": 2}}
    made = reply(choice("a", token_ids=[1, 2]), choice("b", token_ids=[3]), choice(""), usage)
    # The empty third chunk brought nothing, so it has no time.
    assert made == Reply(ChunkTimes(0.0, [1.0, 2.0], None, 5.0), "ab", [1, 2, 3], 3, 2)


@pytest.mark.parametrize("second", [choice("b"), choice("b", token_ids=None)])
def test_text_without_ids_means_that_none_are_given(second: dict[str, Any]) -> None:
    assert reply(choice("a", token_ids=[1]), second, choice("c", token_ids=[2])).token_ids is None


def test_empty_ids_for_text_are_none() -> None:
    assert reply(choice("a", token_ids=[])).token_ids is None
    assert reply(choice("", token_ids=[])).token_ids == []


def test_an_end_token_without_text() -> None:
    """By its id it is a chunk like any other; where there are no ids, the chunk with the reason is its time."""
    usage = {"choices": [], "usage": {"completion_tokens": 2}}
    made = reply(choice("a", token_ids=[5]), choice("", token_ids=[1], finish_reason="stop"), usage)
    assert made.timing == ChunkTimes(0.0, [1.0, 2.0], 2.0, 4.0) and made.timing.tpot(2) == 1.0
    made = reply(choice("a"), choice("", finish_reason="stop"), usage)
    assert made.timing == ChunkTimes(0.0, [1.0], 2.0, 4.0)
    assert (made.timing.tpot(2), made.timing.itl, made.timing.latency) == (1.0, [], 2.0)
    alone = {"choices": [], "usage": {"completion_tokens": 1}}
    made = reply(choice("", finish_reason="stop"), alone)
    assert made.cause is None and made.timing.ttft == 1.0 and made.timing.itl == []


def test_what_went_wrong() -> None:
    assert reply(choice("a"), done=False).error == "the stream ended without [DONE]"
    assert reply({"choices": []}).error == "the stream had no output"
    lost = reply(choice("a"), {"error": {"message": "engine\nlost"}}, done=False)
    assert (lost.cause, lost.error) == ("error in the stream", "engine lost")
    assert reply({"choices": [], "usage": {"completion_tokens": "3"}}, choice("a")).tokens is None


def test_failures_are_counted_by_cause() -> None:
    made = [reply(choice("a")), *[reply(choice("a"), done=False)] * 2, reply(choice(""))]
    assert causes(made) == {"no [DONE]": 2, "no output": 1}
    assert in_words(causes(made)) == "2 × no [DONE], 1 × no output"
