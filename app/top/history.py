"""What changed from look to look: tokens/s and acceptance, as long as the terminal is wide."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence

from app.top.server import Look

KEPT = 300
"""Intervals that are kept; wider is no terminal's line."""
_LEVELS = "▁▂▃▄▅▆▇█"


class History:
    """Tokens/s of all requests and the acceptance rate of each interval, the newest last; None where nothing was
    generated, drafted, or known. Acceptance is of intervals at one K, since that of another does not compare.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.tokens: deque[float | None] = deque(maxlen=KEPT)
        self.acceptance: deque[float | None] = deque(maxlen=KEPT)
        self._clock = clock
        self._last: tuple[float, Look] | None = None

    def add(self, look: Look) -> None:
        """Takes in the newest look."""
        now = self._clock()
        if self._last is not None:
            before, last = self._last
            self.tokens.append(_tokens_per_second(last, look, now - before))
            self.acceptance.append(_acceptance(last, look))
        self._last = now, look


def _tokens_per_second(old: Look, new: Look, seconds: float) -> float | None:
    first, last = (look.engine.get("generated_tokens") for look in (old, new))
    if first is None or last is None or last < first or seconds <= 0:
        return None
    return (last - first) / seconds


def _acceptance(old: Look, new: Look) -> float | None:
    if old.stats is None or new.stats is None or old.stats.k != new.stats.k:
        return None
    before, after = old.stats.lifetime, new.stats.lifetime
    drafted, accepted = (
        after.draft_tokens - before.draft_tokens,
        after.accepted_tokens - before.accepted_tokens,
    )
    return accepted / drafted if drafted > 0 and accepted >= 0 else None


def sparkline(values: Sequence[float | None], width: int, top: float | None = None) -> str:
    """The last `width` values as block characters from 0 to `top`, by default the largest; unknown ones are blank."""
    shown = list(values)[-width:] if width > 0 else []
    highest = top or max((value for value in shown if value is not None), default=0.0) or 1.0
    return "".join(" " if value is None else _level(value / highest) for value in shown)


def _level(share: float) -> str:
    return _LEVELS[min(max(math.ceil(share * len(_LEVELS)) - 1, 0), len(_LEVELS) - 1)]
