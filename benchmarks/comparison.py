"""A draft's acceptance as served and teacher forced, position by position: the arithmetic of `served_accuracy`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from app.bench.errors import BenchError

AGREES, DIFFERS = 0, 1
"""Exit codes."""

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Request:
    """One served greedy request: token ids of prompt and answer (with the end token, if it came), accepted draft tokens
    by step. A step that accepts a tokens at token n of the answer leads to token n + 1 + a.
    """

    prompt: list[int]
    response: list[int]
    accepted: list[int]

    @classmethod
    def from_reply(cls, reply: dict[str, Any]) -> Request:
        """From the answer to a request for ids and detailed metrics.

        Raises:
            BenchError: it lacks them.
        """
        try:
            choice = reply["choices"][0]
            steps = reply["metrics"]["speculative_decoding"]["per_step_accepted"] or []
            return cls(list(choice["prompt_token_ids"]), list(choice["token_ids"]), list(steps))
        except (LookupError, TypeError):
            raise BenchError(
                "the server tells no token ids or no steps: is it the gateway, with a draft and"
                " T5GEMMA_REQUEST_METRICS=detailed?"
            ) from None

    def anchors(self) -> list[int]:
        """The decoder column of every step's anchor; column 0 is the start token, column 1 the first answer token.

        Raises:
            ValueError: the steps do not lead from the first token to the last: one began at the last token or after it,
                or they made fewer tokens.
        """
        *starts, end = accumulate((1 + count for count in self.accepted), initial=1)
        last = len(self.response)
        if (starts and starts[-1] >= last) or end < last:
            raise ValueError(f"{len(starts)} steps lead to token {end} of an answer of {last}")
        return starts

    def inside(self) -> list[int]:
        """Accepted tokens by step, without those behind the answer's end."""
        starts = accumulate((1 + count for count in self.accepted), initial=1)
        return [
            min(count, len(self.response) - start)
            for count, start in zip(self.accepted, starts, strict=False)
        ]


@dataclass(frozen=True, slots=True)
class Walk:
    """Teacher-forced sums over the anchors, by slot from 1 to K.

    `counted`: anchors whose slot lies inside the answer; `correct`: of these, where the draft's likeliest token is the
    answer's, with the true tokens before it given; `matched`: anchors where this slot and all before it are correct.
    `greedy` of the `tokens` answer tokens are the verifier's likeliest, computed in float32.
    """

    anchors: int
    counted: list[int]
    correct: list[int]
    matched: list[int]
    tokens: int
    greedy: int


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
    def of(cls, requests: Sequence[Request], drafts: int, accepted: Sequence[int], walk: Walk) -> Comparison:
        """From the requests, the server's counters over them (drafts, accepted by position) and the walk.

        Raises:
            BenchError: nothing was drafted, or the counters are not those of the requests' steps. The server counts
                steps whole and an answer what is in it, so a request's last step may have more at a position.
        """

        def by_position(runs: Sequence[int]) -> list[int]:
            return [sum(run > position for run in runs) for position in range(len(accepted))]

        runs = [count for request in requests for count in request.inside()]
        inside = by_position(runs)
        behind = [served - told for served, told in zip(accepted, inside, strict=True)]
        if not drafts or drafts != len(runs) or min(behind) < 0 or max(behind) > len(requests):
            raise BenchError(
                f"the server counted {drafts} drafts and {list(accepted)} accepted, its answers tell of"
                f" {len(runs)} and {inside}"
            )
        columns = zip(accepted, inside, walk.matched, walk.counted, walk.correct, strict=True)
        positions = tuple(Position(position, drafts, *sums) for position, sums in enumerate(columns))
        return cls(positions, walk.tokens, walk.greedy)

    @property
    def difference(self) -> float:
        """Served acceptance at position 0 minus the accuracy of slot 1."""
        first = self.positions[0]
        assert first.accuracy is not None, "every anchor has a successor"
        return first.acceptance - first.accuracy

    def exit_code(self, tolerance: float) -> int:
        """0 when position 0 agrees within the tolerance, else 1."""
        return AGREES if abs(self.difference) <= tolerance + _ROUNDING else DIFFERS
