"""Acceptance of the newest drafts: what `L(k)`, the tokens of a step at K = k, would be at every k.

A block is drafted whole at every K, so that a shorter verification accepts a prefix of what a longer one would: each
draft of K tokens speaks for every k up to K. Positions behind the present K are known from the few drafts that were
verified further; what a draft does there, given that it came so far, is taken from those.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_CHUNK = 16
"""Drafts that are forgotten together."""
_GAP = 64
"""Steps without drafts of a K after which a new chunk is begun."""
_KEPT = 64
"""Chunks of a K that are kept."""
_DRAFTS, _CHUNKS = 400, 16
"""The newest drafts that count: so many, and at least so many chunks of large batches."""


@dataclass(frozen=True, slots=True)
class Curve:
    """`rates[i]`: share of drafts that are accepted at position i (unconditional), each from `drafts[i]` drafts."""

    rates: tuple[float, ...]
    drafts: tuple[int, ...]

    @property
    def max_k(self) -> int:
        """The largest k that anything is known of."""
        return len(self.rates)

    def backing(self, k: int) -> int | None:
        """Drafts that `length(k)` stands on; None where it stands on none, K = 0."""
        return min(self.drafts[:k], default=None)

    def length(self, k: int) -> float:
        """`L(k)` = 1 + the sum of the first k rates."""
        return 1 + sum(self.rates[:k])

    def error(self, k: int, over: int | None = None) -> float:
        """Relative standard error of `length(k)`; given `over`, of `length(k) / length(over)`, whose parts come from
        the same drafts and thus err together.
        """
        most = max(k, over or 0)
        backing = self.backing(most)
        if not backing:
            return 0.0
        length = self.length(k)
        ratio = 0.0 if over is None else length / self.length(over)
        variance = 0.0
        for j, share in enumerate(self._shares(most)):
            off = 1 + min(j, k) - (length if over is None else ratio * (1 + min(j, over)))
            variance += share * off * off
        return float((max(variance, 0.0) / backing) ** 0.5 / length)

    def _shares(self, k: int) -> Iterator[float]:
        """Share of drafts of which exactly 0, 1, ... k tokens are accepted."""
        reached = 1.0
        for rate in self.rates[:k]:
            yield reached - rate
            reached = rate
        yield reached


@dataclass(slots=True)
class _Chunk:
    at: int
    drafts: int
    accepted: list[int]


class RecentDrafts:
    """The newest drafts of each K."""

    def __init__(self) -> None:
        self._chunks: dict[int, deque[_Chunk]] = {}

    def add(self, at: int, drafts: Mapping[int, tuple[int, Sequence[int]]]) -> None:
        """The drafts of step number `at`, as `StepStats.drafts` has them."""
        for k, (count, accepted) in drafts.items():
            if not k or not count:
                continue
            chunks = self._chunks.setdefault(k, deque(maxlen=_KEPT))
            if not chunks or chunks[-1].drafts >= _CHUNK or at - chunks[-1].at >= _GAP:
                chunks.append(_Chunk(at, 0, [0] * k))
            chunk = chunks[-1]
            chunk.at = at
            chunk.drafts += count
            for i, hits in enumerate(accepted):
                chunk.accepted[i] += hits

    def curve(self, max_k: int, since: int = 0, only: int | None = None) -> Curve:
        """Acceptance by position as far as anything is known of it, from the drafts after step `since`; with `only`
        from the drafts of that K.
        """
        chunks = [
            (k, chunk)
            for k, kept in self._chunks.items()
            if only in (None, k)
            for chunk in kept
            if chunk.at >= since
        ]
        chunks.sort(key=lambda pair: -pair[1].at)
        rates, backing, rate = [], [], 1.0
        for i in range(max_k):
            drafts = reached = accepted = used = 0
            for k, chunk in chunks:
                if k > i:
                    drafts, used = drafts + chunk.drafts, used + 1
                    reached += chunk.accepted[i - 1] if i else chunk.drafts
                    accepted += chunk.accepted[i]
                    if drafts >= _DRAFTS and used >= _CHUNKS:
                        break
            if not drafts:
                break
            rate *= accepted / reached if reached else 0.0
            rates.append(rate)
            backing.append(drafts)
        return Curve(tuple(rates), tuple(backing))
