"""Acceptance arithmetic: the draft's counters since start and in a sliding window, as integers until the last moment.

Fed by the engine's stat logger once a step. Counts are kept by K, the number of draft tokens that was verified, and
never added up over several: a rate at one K does not compare with a rate at another. Rates are ratios of sums, never
means of ratios, and `None` without traffic. It outlives the engine: counters of `/metrics` start anew with an engine,
these do not.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

from app.drafts.encoder_totals import EncoderTotals
from plugin.drafts.steps import StepStats

log = logging.getLogger("app.drafts")

BUCKETS = 60
"""Slices of the window; what falls out of it falls out a slice at a time."""


@dataclass(slots=True)
class Counts:
    """Sums over draft steps. `proposed[i]` and `accepted[i]` count draft tokens at position i of the block; a position
    that was never proposed has no rate. An empty `proposed` means that nobody counted it.
    """

    k: int
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    proposed: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.accepted = self.accepted or [0] * self.k

    @classmethod
    def of(cls, k: int) -> Counts:
        """Nothing yet of drafts of K tokens."""
        return cls(k, proposed=[0] * k)

    def add(self, drafts: int, accepted: Sequence[int]) -> None:
        """Adds so many drafts of K tokens; `accepted[i]` of them were accepted up to position i."""
        self.drafts += drafts
        self.draft_tokens += drafts * self.k
        self.accepted_tokens += sum(accepted)
        for i in range(self.k):
            self.proposed[i] += drafts
        for i, count in enumerate(accepted):
            self.accepted[i] += count

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
        return _ratio(self.accepted[position], self.drafts) if self._told(position) else None

    def conditional_rate(self, position: int) -> float | None:
        """Acceptance at a position given that everything before it was accepted."""
        reached = self.accepted[position - 1] if position else self.drafts
        return _ratio(self.accepted[position], reached) if self._told(position) else None

    def _told(self, position: int) -> bool:
        return not self.proposed or self.proposed[position] > 0

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
                    "proposed": self.proposed[i] if self.proposed else None,
                    "accepted": self.accepted[i],
                    "rate": self.rate(i),
                    "conditional_rate": self.conditional_rate(i),
                }
                for i in range(self.k)
            ],
        }


class StepRecorder(Protocol):
    """What an engine tells its steps to."""

    @property
    def encoder(self) -> EncoderTotals: ...

    def record(self, step: StepStats) -> object: ...


ByK = dict[int, Counts]


class Ledger:
    """Counters by K, since start and of the last `window_s` seconds."""

    def __init__(self, window_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.window_s = window_s
        self._slice_s = window_s / BUCKETS
        self._clock = clock
        self.refused = 0
        """Engine steps whose numbers were left out."""
        self.encoder = EncoderTotals()
        self._lifetime: ByK = {}
        self._slices: deque[tuple[int, ByK]] = deque()

    def record(self, step: StepStats) -> bool:
        """One engine step. Numbers that cannot be are left out whole and counted in `refused`, for one NaN would poison
        the sums for good; False then.
        """
        if not sound(step):
            self.refused += 1
            # The first of them, then ever fewer: a broken counter is broken in every step.
            if self.refused & (self.refused - 1) == 0:
                log.error("draft counts that cannot be are left out (%d so far): %r", self.refused, step)
            return False
        if not step.drafts:
            return True
        number = int(self._clock() / self._slice_s)
        if not self._slices or self._slices[-1][0] != number:
            self._slices.append((number, {}))
            self._forget(number)
        for counts in (self._lifetime, self._slices[-1][1]):
            for k, (drafts, accepted) in step.drafts.items():
                counts.setdefault(k, Counts.of(k)).add(drafts, accepted)
        return True

    def _forget(self, now: int) -> None:
        while self._slices and self._slices[0][0] <= now - BUCKETS:
            self._slices.popleft()

    @property
    def ks(self) -> list[int]:
        """Every K that was verified since the server started."""
        return sorted(self._lifetime)

    def lifetime(self, k: int) -> Counts:
        """Since the server started."""
        return self._lifetime.get(k) or Counts.of(k)

    def window(self, k: int) -> Counts:
        """The last `window_s` seconds, to one slice."""
        self._forget(int(self._clock() / self._slice_s))
        total = Counts.of(k)
        for _, by_k in self._slices:
            if (counts := by_k.get(k)) is not None:
                total.add(counts.drafts, counts.accepted)
        return total


def sound(step: StepStats) -> bool:
    """Whether these numbers can be: whole, not negative, finite, and never more accepted than there were before."""
    counted = (*step.drafts.items(), *step.before_trimming.items())
    numbers = (step.k, step.num_requests, *(number for k, (n, _) in counted for number in (k, n)))
    if not all(0 <= number < math.inf for number in numbers):
        return False
    if not all(0 <= n < math.inf for n in (step.seconds or 0, step.wall, step.idle, step.tokens or 0)):
        return False
    for k, (drafts, accepted) in counted:
        falling = (drafts, *accepted)
        if len(accepted) > k or not all(b >= 0 and a >= b for a, b in pairwise(falling)):
            return False
    return True


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
