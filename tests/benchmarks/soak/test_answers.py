"""What counts as the same answer, and what does not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.soak.answers import Answer, beginning, difference

USAGE = {
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "completion_tokens_details": {"accepted_prediction_tokens": 1},
}


def choice(**fields: Any) -> dict[str, Any]:
    told = {"tokens": ["a", "b"], "token_logprobs": [-0.5, -1.0]}
    whole = {"index": 0, "text": "ab", "token_ids": [5, 6], "logprobs": told, "finish_reason": "stop"}
    return {**whole, "stop_reason": None, **fields}


def whole(*choices: dict[str, Any], **usage: Any) -> Answer:
    body = {"choices": list(choices or (choice(),)), "usage": {**USAGE, **usage}}
    return Answer.of(200, json.dumps(body).encode())


def test_a_stream_is_the_whole_in_parts() -> None:
    """Samples in any order, usage at the end, logprobs nearly the same."""
    parts = [
        choice(index=1, text="c", token_ids=[7], logprobs=None, finish_reason="length"),
        choice(
            text="a",
            token_ids=[5],
            logprobs={"tokens": ["a"], "token_logprobs": [-0.5001]},
            finish_reason=None,
        ),
        choice(text="b", token_ids=[6], logprobs={"tokens": ["b"], "token_logprobs": [-1.0]}),
    ]
    stream = Answer(200)
    for part in parts:
        stream.take({"choices": [part]})
    stream.take({"choices": [], "usage": USAGE})
    other = choice(index=1, text="c", token_ids=[7], logprobs=None, finish_reason="length")
    alone = whole(choice(), other)
    assert difference(alone, stream) == "end: alone True, here False"
    stream.ended = True
    assert difference(alone, stream) is None and (stream.tokens, stream.accepted) == (2, 1)


@pytest.mark.parametrize(
    ("got", "name"),
    [
        (Answer.of(503, b'{"error": {"code": 503}}'), "status"),
        (whole(choice(text="ax")), "text of 0"),
        (whole(choice(token_ids=[5, 7])), "ids of 0"),
        (whole(choice(finish_reason="length")), "finish_reason of 0"),
        (whole(choice(stop_reason="b")), "stop_reason of 0"),
        (whole(choice(logprobs={"tokens": ["a", "b"], "token_logprobs": [-0.5, -1.1]})), "logprobs of 0"),
        (whole(choice(), choice(index=1)), "choices"),
        (whole(completion_tokens=3), "completion_tokens"),
        (whole(prompt_tokens=4), "prompt_tokens"),
    ],
)
def test_differences(got: Answer, name: str) -> None:
    told = difference(whole(), got)
    assert told is not None and told.startswith(f"{name}: "), told


def test_sampled_answers_have_the_same_lengths() -> None:
    assert difference(whole(), whole(choice(text="zz", token_ids=[8, 9])), exact=False) is None
    assert difference(whole(), whole(completion_tokens=3), exact=False) is not None


def test_errors_are_compared_whole() -> None:
    alone = Answer.of(400, b'{"error": {"param": "n"}}')
    assert difference(alone, Answer.of(400, b'{"error": {"param": "n"}}')) is None
    assert difference(alone, Answer.of(400, b'{"error": {"param": "model"}}')) is not None


def test_a_client_that_left_saw_the_beginning() -> None:
    seen = Answer(200)
    seen.take({"choices": [choice(text="a")]})
    assert beginning(whole(), seen) is None
    seen.take({"choices": [choice(text="x")]})
    assert beginning(whole(), seen) == "text of 0: alone 'ab', here 'ax'"
    seen.take({"error": {"code": 500}})
    assert (beginning(whole(), seen) or "").startswith("status 200")
