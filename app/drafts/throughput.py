"""Tokens that were served and the time that they took, as a benchmark of the present traffic would count them.

A draft shortens decode steps and nothing else. Admissions take what they take, and so do the way from the engine to its
clients and back and the places of the batch that stand empty meanwhile. What is served is faster by less than its
decode steps are, the more so the shorter the answers and the more clients there are.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from app.drafts.step_times import StepTimes, batch_of
from plugin.drafts.steps import StepStats

_IDLE_S, _IDLE_STEPS = 0.1, 5
"""A pause that is longer than this, and than so many steps, is for want of requests."""
_CHUNK = 64
"""Steps that are forgotten together."""
_KEPT = 32
"""Chunks of a K that are kept."""
_ALIKE = 0.25
"""Traffic is another where the mean number of requests of a step differs by more than this share."""
_FULL = 0.9
"""Share of the steps that have no more requests than there are places."""


@dataclass(frozen=True, slots=True)
class Served:
    """Steps at one K: `seconds` that they and the pauses between them took, `rows` (one for each request in each step),
    output `tokens`, and `places`, the requests of a step in which none is missing; `step_s` is how long a decode step
    of so many lasted meanwhile.
    """

    seconds: float
    rows: int
    tokens: int
    places: int
    step_s: float

    def speedup(self, slowness: float) -> float:
        """Tokens/s over those without a draft, whose decode steps are shorter by the factor `slowness`.

        A row takes its share of a step with every place taken. Without a draft there is a row for every token, and all
        time beside stays: `(t_0 / b * tokens + o) / (t_k / b * rows + o)`.
        """
        rows_s = self.rows * self.step_s / self.places
        other_s = max(0.0, self.seconds - rows_s)
        return (self.tokens * self.step_s / slowness / self.places + other_s) / (rows_s + other_s)


@dataclass(slots=True)
class _Chunk:
    at: int
    seconds: float = 0.0
    tokens: int = 0
    rows: Counter[int] = field(default_factory=Counter)

    @property
    def mean_rows(self) -> float:
        return sum(n * steps for n, steps in self.rows.items()) / self.rows.total()


class Throughput:
    """Of the last two thousand steps of each K."""

    def __init__(self) -> None:
        self._chunks: dict[int, deque[_Chunk]] = {}
        self._decode_s = 0.0

    def add(self, step: StepStats, times: StepTimes) -> None:
        """One engine step, which `times` has been given."""
        self._decode_s = step.seconds or self._decode_s
        if not step.wall:
            return
        chunks = self._chunks.setdefault(step.k, deque(maxlen=_KEPT))
        if not chunks or chunks[-1].rows.total() >= _CHUNK:
            chunks.append(_Chunk(times.steps))
        chunk = chunks[-1]
        waited = step.idle > max(_IDLE_S, _IDLE_STEPS * self._decode_s)
        chunk.seconds += step.wall - step.idle if waited else step.wall
        chunk.rows[step.num_requests] += 1
        chunk.tokens += step.num_tokens

    def served(self, k: int, batch: int, times: StepTimes) -> Served | None:
        """What steps at K = k served since the traffic is what it is; None without any. Their duration is that of
        batches of up to `batch` where no other was timed.
        """
        chunks: list[_Chunk] = []
        present = 0.0
        for chunk in reversed(self._chunks.get(k, ())):
            if chunk.rows.total() >= _CHUNK / 2:  # fewer may be the end of the load
                present = present or chunk.mean_rows
                if abs(chunk.mean_rows / present - 1) > _ALIKE:
                    break
            chunks.append(chunk)
        if not chunks:
            return None
        rows = sum((chunk.rows for chunk in chunks), Counter[int]())
        places, counted = 0, 0
        for places in sorted(rows):
            counted += rows[places]
            if counted >= _FULL * rows.total():
                break
        step = times.seconds(k, batch_of(places), chunks[-1].at) or times.seconds(k, batch)
        if step is None:
            return None
        return Served(
            sum(chunk.seconds for chunk in chunks),
            sum(n * steps for n, steps in rows.items()),
            sum(chunk.tokens for chunk in chunks),
            places,
            step.value,
        )
