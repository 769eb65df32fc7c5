"""A reply is put together from its events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.bench.arithmetic import ChunkTimes
from app.bench.client import Reply


def reply(*chunks: dict[str, Any], done: bool = True) -> Reply:
    made = Reply(ChunkTimes(0.0))
    for second, chunk in enumerate(chunks, 1):
        made.take(json.dumps(chunk), float(second))
    made.end(done)
    return made


def choice(text: str, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, **fields}]}


def test_a_whole_reply() -> None:
    usage = {"choices": [], "usage": {"completion_tokens": 3, "prompt_tokens": 2}}
    made = reply(choice("a", token_ids=[1, 2]), choice("b", token_ids=[3]), choice(""), usage)
    assert made == Reply(ChunkTimes(0.0, [1.0, 2.0, 3.0]), "ab", [1, 2, 3], 3, 2, None)


@pytest.mark.parametrize("second", [choice("b"), choice("b", token_ids=None)])
def test_text_without_ids_means_that_none_are_given(second: dict[str, Any]) -> None:
    assert reply(choice("a", token_ids=[1]), second, choice("c", token_ids=[2])).token_ids is None


def test_empty_ids_for_text_are_none() -> None:
    assert reply(choice("a", token_ids=[])).token_ids is None
    assert reply(choice("", token_ids=[])).token_ids == []


def test_what_went_wrong() -> None:
    assert reply(choice("a"), done=False).error == "the stream ended without [DONE]"
    assert reply({"choices": []}).error == "the stream had no output"
    lost = reply(choice("a"), {"error": {"message": "engine\nlost"}}, done=False)
    assert lost.error == "engine lost"
    assert reply({"choices": [], "usage": {"completion_tokens": "3"}}, choice("a")).tokens is None
