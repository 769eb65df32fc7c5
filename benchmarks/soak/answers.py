"""What a request was answered, and whether that is what it is answered alone."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

LOGPROB_TOLERANCE = 2e-3
"""By which a log probability may differ: sums of float32 depend on the batch that a token is in."""


@dataclass(slots=True)
class Said:
    """One choice."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def take(self, choice: Mapping[str, Any]) -> None:
        self.text += choice.get("text") or ""
        self.ids += choice.get("token_ids") or []
        if told := choice.get("logprobs"):
            self.tokens += told["tokens"]
            self.logprobs += told["token_logprobs"]
        if choice.get("finish_reason") is not None:
            self.finish_reason, self.stop_reason = choice["finish_reason"], choice.get("stop_reason")


@dataclass(slots=True)
class Answer:
    """A whole reply, or the events of a stream put together; `ended`: it came to its proper end."""

    status: int
    choices: dict[int, Said] = field(default_factory=dict)
    usage: Mapping[str, Any] = field(default_factory=dict)
    other: Any = None
    """The body of a reply without choices."""
    ended: bool = False

    @classmethod
    def of(cls, status: int, body: bytes) -> Answer:
        answer, value = cls(status), json.loads(body)
        if isinstance(value, dict) and "choices" in value:
            answer.take(value)
        else:
            answer.other = value
        answer.ended = True
        return answer

    def take(self, chunk: Mapping[str, Any]) -> None:
        """A reply's body, or an event of a stream."""
        if "error" in chunk:
            self.other = chunk
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk.get("choices") or ():
            self.choices.setdefault(choice["index"], Said()).take(choice)

    @property
    def accepted(self) -> int:
        """Draft tokens that are in it."""
        details = self.usage.get("completion_tokens_details") or {}
        return int(details.get("accepted_prediction_tokens", 0))

    @property
    def tokens(self) -> int:
        return int(self.usage.get("completion_tokens", 0))


def difference(alone: Answer, got: Answer, exact: bool = True) -> str | None:
    """In which an answer is not the one alone; None: in nothing."""
    pairs: list[tuple[str, Any, Any]] = [
        ("status", alone.status, got.status),
        ("end", True, got.ended),
        ("choices", sorted(alone.choices), sorted(got.choices)),
    ]
    if alone.status != 200 or not alone.choices:
        pairs.append(("body", alone.other, got.other))
    for index in sorted(alone.choices.keys() & got.choices.keys()):
        one, other = alone.choices[index], got.choices[index]
        if not exact:
            pairs.append((f"finish_reason of {index}", one.finish_reason, other.finish_reason))
        else:
            names = ("text", "finish_reason", "stop_reason", "ids", "tokens")
            pairs += [(f"{name} of {index}", getattr(one, name), getattr(other, name)) for name in names]
            if not _near(one.logprobs, other.logprobs):
                pairs.append((f"logprobs of {index}", one.logprobs, other.logprobs))
    counts = ("prompt_tokens", "completion_tokens")
    pairs += [(name, alone.usage.get(name), got.usage.get(name)) for name in counts]
    return next(
        (f"{name}: alone {want!r}, here {have!r}" for name, want, have in pairs if want != have), None
    )


def beginning(alone: Answer, got: Answer) -> str | None:
    """In which what a client has seen that left is not the beginning of the answer alone; None: in nothing."""
    if got.status != alone.status or got.other is not None:
        return f"status {got.status}, {got.other!r}"
    for index, said in got.choices.items():
        whole = alone.choices[index].text
        if not whole.startswith(said.text):
            return f"text of {index}: alone {whole!r}, here {said.text!r}"
    return None


def _near(one: Iterable[float], other: Iterable[float]) -> bool:
    ones, others = list(one), list(other)
    return len(ones) == len(others) and all(
        math.isclose(a, b, rel_tol=LOGPROB_TOLERANCE, abs_tol=LOGPROB_TOLERANCE)
        for a, b in zip(ones, others, strict=True)
    )
