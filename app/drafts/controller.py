"""Which K the next steps have: the one that was chosen, and now and then, for a few steps, another to learn its worth.

A *window* is a handful of steps at another K: at K = 0 for the baseline, at the largest for what the later positions
would accept, at one that promises to be faster for how long its steps take. Windows take a fixed share of the steps,
but for those at a K that promises so much that they should cost none. With `auto` the controller also moves to what
proves faster: by 5 % over 200 drafts, by less after more of them, and by twice the standard error of the comparison in
any case. It counts steps and knows no clock and no engine, so that a test runs it through a million steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from app.drafts.estimate import ENOUGH_DRAFTS, Estimator, Snapshot
from app.drafts.step_times import BURST, batch_of
from plugin.drafts.steps import StepStats

AUTO_SHARE = 0.02
"""Share of the steps that `auto` measures with at least: it cannot do without."""
MARGIN, LEAST_MARGIN = 0.05, 0.01
"""What a change must win after the first 200 drafts at a K, and after very many."""
WINDOW_STEPS = 12
"""What a window costs, about: the timed steps, and those at its edges."""
_SETTLED_STEPS = 12
"""Steps after a change before the next window."""
_SOON, _EVERY = 8, 32
"""Steps between two decisions, during the first 64 after a change and later."""
_FRESH_STEPS = 4000
"""What was measured earlier does not count for a decision."""

Changed = Callable[[int, int, str], None]
"""Told the old K, the new one, and why."""


@dataclass(slots=True)
class _Window:
    """Steps at `k` until enough were timed in batches as large as `batch` and `drafts` were verified."""

    k: int
    batch: int
    drafts: int = 0
    steps: int = 0
    timed: int = 0
    seen: int = 0

    def over(self, step: StepStats) -> bool:
        self.steps += 1
        if step.k == self.k and batch_of(step.num_requests) == self.batch:
            self.timed += step.seconds is not None
        self.seen += sum(count for k, (count, _) in step.drafted.items() if k == self.k)
        enough = self.timed >= BURST and self.seen >= self.drafts
        return enough or self.steps >= 4 * BURST + 2 * self.drafts


class Controller:
    """Decides from what `estimator` knows, which is given every step before this is."""

    def __init__(
        self,
        estimator: Estimator,
        k: int,
        auto: bool = False,
        floor: int = 0,
        ceiling: int | None = None,
        share: float = 0.0,
        changed: Changed = lambda old, new, why: None,
    ) -> None:
        """Begins with K = `k`, which `auto` may change within `floor` and `ceiling` (None: the block's largest).
        `share` of the steps go into windows; 0 opens none.
        """
        self.k, self.auto = k, auto
        self.measuring_steps = 0
        """Steps at another K than the chosen one."""
        self._estimator = estimator
        self._allowed = [
            one for one in estimator.ks if floor <= one <= (estimator.ks[-1] if ceiling is None else ceiling)
        ]
        self._share = share
        self._changed = changed
        self._window: _Window | None = None
        self._cost = 1.0
        self._credit = float(WINDOW_STEPS)
        self._steps = self._drafts = 0
        self._anchors_turn = False

    @property
    def wanted(self) -> int:
        """The K of the next steps."""
        return self.k if self._window is None else self._window.k

    @property
    def allowed(self) -> list[int]:
        """The K that `auto` chooses among."""
        return self._allowed

    @property
    def share(self) -> float:
        """Of the steps, for windows."""
        return max(self._share, AUTO_SHARE) if self.auto else self._share

    def choose(self, k: int, auto: bool) -> None:
        """From now on K is `k`, for good or, with `auto`, until another proves faster."""
        self.end_window()
        self.auto = auto
        if k != self.k:
            self._move(k)

    def end_window(self) -> None:
        """Back to the chosen K, whatever the window has not seen yet."""
        if self._window is not None:
            self._window = None
            self._estimator.times.begin_span()

    def step(self, step: StepStats, may_measure: bool = True) -> None:
        """After each engine step; `may_measure` is whether a window may be opened now."""
        self._credit = min(self._credit + self.share, 2.0 * WINDOW_STEPS)
        self._steps += 1
        self._drafts += step.num_requests
        if step.k != self.k:
            self.measuring_steps += 1
            self._credit -= self._cost
        if self._window is not None:
            if self._window.over(step):
                self.end_window()
                self._decide()
            return
        due = self._steps % (_SOON if self._steps < 64 else _EVERY) == 0
        if due and not self._decide() and may_measure:
            self._open()

    def _decide(self) -> bool:
        """Moves to the K that has proven the fastest, if one has; whether it did."""
        if not self.auto or self._drafts < ENOUGH_DRAFTS:
            return False
        if (known := self._estimator.snapshot(_FRESH_STEPS)) is None:
            return False
        margin = max(LEAST_MARGIN, MARGIN * (ENOUGH_DRAFTS / self._drafts) ** 0.5)
        best, won = self.k, 1.0
        for k in self._allowed:
            gain = known.gain(k, self.k) if k != self.k else None
            if gain is None or (gain.drafts is not None and gain.drafts < ENOUGH_DRAFTS):
                continue
            if gain.ratio - 1 >= max(margin, 2 * gain.error) and gain.ratio > won:
                best, won = k, gain.ratio
        if best == self.k:
            return False
        self._changed(self.k, best, f"{won - 1:.1%} more tokens/s, with up to {known.batch} requests at once")
        self._move(best)
        return True

    def _move(self, k: int) -> None:
        self.k = k
        self._estimator.times.begin_span()
        self._steps = self._drafts = 0
        self._credit = max(self._credit, float(WINDOW_STEPS))

    def _open(self) -> None:
        """Opens the window that is needed most, if the share allows one now; what `auto` expects to win by is free."""
        if not self.share or self._steps < _SETTLED_STEPS:
            return
        if (
            not self.auto and self._credit < WINDOW_STEPS
        ):  # nothing is free then, and a snapshot is not either
            self._cost = 0.0
            return
        known, fresh = self._estimator.snapshot(), self._estimator.snapshot(_FRESH_STEPS)
        if known is not None and fresh is not None and self.k in known.seconds:
            # Durations last; what a draft accepts changes with what is asked.
            known = replace(known, curve=max(fresh.curve, known.curve, key=lambda curve: curve.max_k))
            self._cost = 0.0
            self._window = self._promising(known)
            if self._window is None and self._credit >= WINDOW_STEPS:
                self._window = self._needed(known)
                self._cost = max(1.0, known.slowness(self._window.k, self.k)) if self._window else 0.0
            if self._window is not None:
                self._estimator.times.begin_span()

    def _needed(self, known: Snapshot) -> _Window | None:
        """The anchors, K = 0 and the largest, at first; then in turn the older of them, and what promises to be faster
        and is not proven.
        """
        ks = self._allowed if self.auto else self._estimator.ks
        anchors = [k for k in (0, ks[-1]) if k != self.k]
        for k in anchors:
            if k not in known.seconds:
                return _Window(k, known.batch)
        self._anchors_turn = not self._anchors_turn
        if not self._anchors_turn and (candidate := self._candidate(known, ks)) is not None:
            return candidate
        return _Window(min(anchors, key=lambda k: known.seconds[k].at), known.batch) if anchors else None

    def _promising(self, known: Snapshot) -> _Window | None:
        """For `auto`: what would be chosen now if it were proven."""
        guesses = self._guesses(known, self._allowed)
        best = max(guesses, key=lambda k: guesses[k], default=self.k)
        if not self.auto or guesses.get(best, 0.0) < 1 + MARGIN:
            return None
        # Long enough to tell what it accepts where that is not known yet.
        return _Window(best, known.batch, ENOUGH_DRAFTS if best > self.k else 0)

    def _candidate(self, known: Snapshot, ks: Sequence[int]) -> _Window | None:
        """What looks faster; for `auto`, where nothing does, what is nearly as fast, which costs little to look at
        again: its measurement may have been unlucky.
        """
        guesses, least = self._guesses(known, ks), 1 + LEAST_MARGIN
        if self.auto and max(guesses.values(), default=0.0) < least:
            gains, least = {k: known.gain(k, self.k) for k in guesses}, 1 - MARGIN
            guesses = {k: gain.ratio + 2 * gain.error for k, gain in gains.items() if gain is not None}
        best = max(guesses, key=lambda k: guesses[k], default=None)
        return None if best is None or guesses[best] < least else _Window(best, known.batch)

    def _guesses(self, known: Snapshot, ks: Sequence[int]) -> dict[int, float]:
        return {k: guess for k in ks if k != self.k and (guess := known.guess(k, self.k)) is not None}
