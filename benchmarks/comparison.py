"""A draft's acceptance as served and teacher forced, position by position: the arithmetic of `served_accuracy`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.bench.errors import BenchError

AGREES, DIFFERS = 0, 1
"""Exit codes."""

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Request:
    """One served request: token ids of prompt and answer, accepted draft tokens by step."""

    prompt: list[int]
    response: list[int]
    accepted: list[int]

    @classmethod
    def from_reply(cls, reply: dict[str, Any]) -> Request:
        """From the answer to a request for ids and detailed metrics. Raises `BenchError` when it lacks them."""
        try:
            choice = reply["choices"][0]
            steps = reply["metrics"]["speculative_decoding"]["per_step_accepted"] or []
            return cls(list(choice["prompt_token_ids"]), list(choice["token_ids"]), list(steps))
        except (LookupError, TypeError):
            raise BenchError(
                "the server tells no token ids or no steps: is it the gateway, with a draft and"
                " T5GEMMA_REQUEST_METRICS=detailed?"
            ) from None

    def inside(self) -> list[int]:
        """Accepted tokens by step, without those behind the answer's end: a step that accepts a tokens at token n of
        the answer leads to token n + 1 + a.
        """
        runs, token = [], 1
        for count in self.accepted:
            runs.append(min(count, len(self.response) - token))
            token += 1 + count
        return runs

    def to_json(self) -> dict[str, Any]:
        """As `benchmarks.serving_walk` reads it."""
        return {"prompt": self.prompt, "response": self.response, "accepted": self.accepted}


@dataclass(frozen=True, slots=True)
class Position:
    """One position of the block, from 0. `served`, `inside` and `matched`: anchors at which it was accepted, by the
    server, by the server inside the answer, and teacher forced; `counted`: anchors whose slot lies inside the answer,
    `correct` of which are right.
    """

    position: int
    anchors: int
    served: int
    inside: int
    matched: int
    counted: int
    correct: int

    @property
    def acceptance(self) -> float:
        """Served: accepted here / drafts."""
        return self.served / self.anchors

    @property
    def inside_acceptance(self) -> float:
        """Served, without what lies behind the end of the answers."""
        return self.inside / self.anchors

    @property
    def forced_acceptance(self) -> float:
        """Teacher forced: right here and at all positions before / anchors."""
        return self.matched / self.anchors

    @property
    def accuracy(self) -> float | None:
        """Teacher forced: right here, whatever came before; None when no answer reaches so far."""
        return self.correct / self.counted if self.counted else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Served and teacher-forced figures at the same anchors. `greedy` of `tokens` answer tokens are the verifier's
    likeliest in float32: the rest are near ties, or not the verifier's own.
    """

    positions: tuple[Position, ...]
    tokens: int
    greedy: int

    @classmethod
    def of(
        cls, requests: Sequence[Request], drafts: int, accepted: Sequence[int], walked: dict[str, Any]
    ) -> Comparison:
        """From the requests, the server's counters over them (drafts, accepted by position) and the walk's sums.

        Raises `BenchError` when nothing was drafted, or the counters are not those that the requests tell.
        """
        runs = [count for request in requests for count in request.accepted]
        told = [sum(run > place for run in runs) for place in range(len(accepted))]
        if not drafts or (drafts, list(accepted)) != (len(runs), told):
            raise BenchError(
                f"the server counted {drafts} drafts and {list(accepted)} accepted, its answers tell of"
                f" {len(runs)} and {told}"
            )
        within = [count for request in requests for count in request.inside()]
        columns = (accepted, [sum(run > place for run in within) for place in range(len(accepted))])
        sums = (walked["matched"], walked["counted"], walked["correct"])
        positions = tuple(
            Position(place, drafts, *numbers)
            for place, numbers in enumerate(zip(*columns, *sums, strict=True))
        )
        return cls(positions, walked["tokens"], walked["greedy"])

    @property
    def difference(self) -> float:
        """Served acceptance at position 0 minus the accuracy of slot 1."""
        first = self.positions[0]
        assert first.accuracy is not None, "every anchor has a successor"
        return first.acceptance - first.accuracy

    def exit_code(self, tolerance: float) -> int:
        """0 when position 0 agrees within the tolerance, else 1."""
        return AGREES if abs(self.difference) <= tolerance + _ROUNDING else DIFFERS
