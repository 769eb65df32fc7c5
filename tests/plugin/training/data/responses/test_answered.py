"""Samples with answers: only what is missing is asked, and how far it is is said."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from plugin.training.data.responses.answered import verifier_responses
from plugin.training.data.samples import Sample

SAMPLES = [Sample([2, 5], [], "a"), Sample([2, 6], [], "b"), Sample([2, 5], [], "c")]


class Echo:
    """Answers with the prompt backwards, the last prompt first, an end token behind the even ones."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __call__(self, prompts: Sequence[list[int]], max_new_tokens: int) -> Iterator[tuple[int, list[int]]]:
        self.asked += prompts
        for number, prompt in reversed(list(enumerate(prompts))):
            yield number, [*prompt[::-1], *([1] if prompt[1] % 2 == 0 else [])]


def test_each_prompt_is_asked_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Equal ones and those that the file has are not asked again; an answer without an end token was cut."""
    echo, file = Echo(), tmp_path / "r.jsonl"
    with caplog.at_level(logging.INFO):
        answered, facts = verifier_responses(SAMPLES, echo, file, "ab", 8, {1})
    assert echo.asked == [[2, 5], [2, 6]]
    assert [(one.response, one.response_cut, one.id) for one in answered] == [
        ([5, 2], True, "a"), ([6, 2, 1], False, "b"), ([5, 2], True, "c"),
    ]  # fmt: skip
    assert facts | {"sha256": ""} == {
        "verifier": "ab", "sampling": "greedy", "max_new_tokens": 8, "prompts": 2, "sha256": "",
    }  # fmt: skip
    assert "verifier's responses: 2/2  responses  0:00:00 left" in caplog.text
    more = [*SAMPLES, Sample([2, 8], [], "d")]
    again, other = verifier_responses(more, echo, file, "ab", 8, {1})
    assert echo.asked[2:] == [[2, 8]] and again[:3] == answered and other["sha256"] != facts["sha256"]
    assert verifier_responses(SAMPLES, echo, file, "ab", 8, {1}) == (answered, facts) and len(echo.asked) == 3
