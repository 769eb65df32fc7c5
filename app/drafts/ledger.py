"""Acceptance arithmetic: the draft's counters since start and in a sliding window, as integers until the last moment.

Fed by the engine's stat logger once a step. Rates are ratios of sums, never means of ratios, and `None` without
traffic. It outlives the engine: counters of `/metrics` start anew with an engine, these do not.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.drafts.encoder_totals import EncoderTotals

log = logging.getLogger("app.drafts")

BUCKETS = 60
"""Slices of the window; what falls out of it falls out a slice at a time."""


@dataclass(slots=True)
class Counts:
    """Sums over draft steps. `proposed[i]` and `accepted[i]` count draft tokens at position i of the block."""

    k: int
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    proposed: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.proposed = self.proposed or [0] * self.k
        self.accepted = self.accepted or [0] * self.k

    def add(
        self,
        drafts: int,
        draft_tokens: int,
        accepted_tokens: int,
        proposed: Sequence[int],
        accepted: Sequence[int],
    ) -> None:
        """Adds sums in place; the position lists may be shorter or longer than K."""
        self.drafts += drafts
        self.draft_tokens += draft_tokens
        self.accepted_tokens += accepted_tokens
        for mine, others in ((self.proposed, proposed), (self.accepted, accepted)):
            for i in range(min(self.k, len(others))):
                mine[i] += others[i]

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / draft tokens."""
        return _ratio(self.accepted_tokens, self.draft_tokens)

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted / drafts: tokens of an average step, the verifier's own one included."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else None

    def rate(self, position: int) -> float | None:
        """Unconditional acceptance at a position: accepted there / drafts."""
        return _ratio(self.accepted[position], self.drafts)

    def conditional_rate(self, position: int) -> float | None:
        """Acceptance at a position given that everything before it was accepted."""
        reached = self.accepted[position - 1] if position else self.drafts
        return _ratio(self.accepted[position], reached)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; `per_position` has K entries, positions from 0 as in the engine's metric labels."""
        return {
            "drafts": self.drafts,
            "draft_tokens": self.draft_tokens,
            "accepted_tokens": self.accepted_tokens,
            "acceptance_rate": self.acceptance_rate,
            "mean_acceptance_length": self.mean_acceptance_length,
            "per_position": [
                {
                    "position": i,
                    "proposed": self.proposed[i],
                    "accepted": self.accepted[i],
                    "rate": self.rate(i),
                    "conditional_rate": self.conditional_rate(i),
                }
                for i in range(self.k)
            ],
        }


class Ledger:
    """Counters since start and of the last `window_s` seconds, for blocks of K draft tokens (0: no draft)."""

    def __init__(self, k: int, window_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.k = k
        self.window_s = window_s
        self._slice_s = window_s / BUCKETS
        self._clock = clock
        self.refused = 0
        """Engine steps whose numbers were left out."""
        self.encoder = EncoderTotals()
        self._lifetime = Counts(k)
        self._slices: deque[tuple[int, Counts]] = deque()

    def record(
        self,
        drafts: int,
        draft_tokens: int,
        accepted_tokens: int,
        proposed: Sequence[int],
        accepted: Sequence[int],
    ) -> None:
        """One engine step's sums; the position lists may be shorter or longer than K. Numbers that cannot be are left
        out and counted in `refused`: one NaN would poison the sums for good.
        """
        sums = (drafts, draft_tokens, accepted_tokens, *proposed, *accepted)
        if not all(0 <= value < math.inf for value in sums) or accepted_tokens > draft_tokens:
            self.refused += 1
            # The first of them, then ever fewer: a broken counter is broken in every step.
            if self.refused & (self.refused - 1) == 0:
                log.error("draft counts that cannot be are left out (%d so far): %r", self.refused, sums)
            return
        number = int(self._clock() / self._slice_s)
        if not self._slices or self._slices[-1][0] != number:
            self._slices.append((number, Counts(self.k)))
            self._forget(number)
        for counts in (self._lifetime, self._slices[-1][1]):
            counts.add(drafts, draft_tokens, accepted_tokens, proposed, accepted)

    def _forget(self, now: int) -> None:
        while self._slices and self._slices[0][0] <= now - BUCKETS:
            self._slices.popleft()

    def lifetime(self) -> Counts:
        """Since the server started."""
        return self._lifetime

    def window(self) -> Counts:
        """The last `window_s` seconds, to one slice."""
        self._forget(int(self._clock() / self._slice_s))
        total = Counts(self.k)
        for _, counts in self._slices:
            total.add(
                counts.drafts,
                counts.draft_tokens,
                counts.accepted_tokens,
                counts.proposed,
                counts.accepted,
            )
        return total


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
