"""K while the server runs: takes in the engine's steps, decides which K the next ones have, and tells the engine.

One object for one loaded draft. Everything in it happens in the event loop, where the engine's stat logger is called.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from app.config.settings import Settings
from app.drafts import baseline
from app.drafts.controller import Controller
from app.drafts.encoder_totals import EncoderTotals
from app.drafts.estimate import Estimator
from app.drafts.ledger import Ledger
from plugin.drafts.checkpoint import Checkpoints, DraftFacts
from plugin.drafts.steps import StepStats

log = logging.getLogger("app.drafts")

Asked = int | Literal["auto"]
SetLength = Callable[[int], Awaitable[None]]
IDLE_S = 5.0
"""Seconds without a step after which a window is closed: the next request is served at the chosen K."""


@dataclass(frozen=True, slots=True)
class Temporary:
    """A K that holds until `until` on the clock; `then` is asked for again, and K is `k` as it was before."""

    then: Asked
    k: int
    until: float
    timer: asyncio.TimerHandle


class Drafting:
    """K of one draft, and what is known of it; without a draft K stays None and nothing is known."""

    def __init__(
        self,
        draft: DraftFacts | None,
        k: int | None,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`k`: the K to begin with; with T5GEMMA_K=auto it is moved between floor and ceiling."""
        self.clock = clock
        self.ledger = Ledger(settings.stats_window_s, clock)
        self.max_k = (k or 0) if settings.short_block or draft is None else draft.max_k
        self.switchable = draft is not None and not settings.short_block
        self.changes: Counter[str] = Counter(request=0, auto=0)
        """Changes of the chosen K, by who made them."""
        auto = settings.k == "auto"
        floor, ceiling = settings.k_floor, min(settings.k_ceiling or self.max_k, self.max_k)
        first = k or 0
        self.estimator = Estimator(
            range(self.max_k + 1) if self.switchable else sorted({0, self.max_k}), clock
        )
        self.controller = Controller(
            self.estimator,
            min(max(first, floor), ceiling) if auto else first,
            auto,
            floor,
            ceiling,
            settings.baseline_share if draft is not None else 0.0,
            self._changed,
        )
        self.baseline_key: dict[str, Any] | None = None
        """What a stored baseline must have been measured with, soon after the engine is there."""
        self._folder, self._eager = baseline.folder_of(settings.baseline_dir), settings.enforce_eager
        self._set_length: SetLength | None = None
        self._told = -1
        self._telling: asyncio.Task[None] | None = None
        self._watching: asyncio.TimerHandle | None = None
        self._steady = 0
        self.temporary: Temporary | None = None
        """What ends the present K by itself, if it was asked for for a time."""

    @property
    def k(self) -> int:
        """Draft tokens a step, as chosen; 0 without a draft. A window may have another for a few steps."""
        return self.controller.k

    @property
    def lengths(self) -> list[int]:
        """Every K that a step may have."""
        return list(self.estimator.ks) if self.max_k else []

    @property
    def asked(self) -> Asked:
        """What was asked for last."""
        return "auto" if self.controller.auto else self.controller.k

    @property
    def encoder(self) -> EncoderTotals:
        """What the engines' encoders did."""
        return self.ledger.encoder

    def record(self, step: StepStats) -> None:
        """One engine step."""
        if self.ledger.record(step) and self.max_k:
            self.estimator.add(step)
            if self._set_length is not None:
                self.controller.step(step, may_measure=not self._steady and self.temporary is None)
                self._tell()

    async def attach(self, set_length: SetLength) -> None:
        """The engine is there: it is told K, now and whenever that changes."""
        if self.max_k:
            self._set_length, self._told = set_length, -1
            await self._told_now()

    async def read_baseline(self, loaded: Checkpoints | None, dtype: str) -> None:
        """The stored one, if there is any, for `loaded`, checkpoints as folders, in an engine of that `dtype`. Its key
        names the hardware, and to ask for that may take seconds: no request has to wait for it.
        """
        if self.max_k and loaded is not None and loaded.draft is not None:
            folders = loaded.verifier.path, loaded.draft.path
            self.baseline_key = await asyncio.to_thread(baseline.key_of, folders, dtype, self._eager)
            stored = await asyncio.to_thread(baseline.load, self._folder, self.baseline_key, self.clock())
            self.estimator.baseline = stored

    def detach(self) -> None:
        """The engine is about to go: it is told nothing more. A temporary K is over: another engine begins with what
        was asked for before.
        """
        self._set_length = None
        self._end_temporary()
        self.controller.end_window()
        for pending in (self._telling, self._watching):
            if pending is not None:
                pending.cancel()
        self._telling = self._watching = None

    async def choose(self, asked: Asked, seconds: float | None = None) -> int:
        """K from the next step on, and returned once every engine has been told; by then somebody may have asked for
        another. After `seconds`, if given, what was asked for before is asked for again, unless somebody has asked
        meanwhile; no window opens until then. One for a time within another comes back to what was before both.

        Raises:
            EngineDead: they are gone.
            RuntimeError: an engine could not be told before.
        """
        if self._set_length is None:
            raise RuntimeError("the engine takes no other K")
        old = self.controller.k
        self._end_temporary()
        then, before = self.asked, self.controller.k
        self.controller.choose(self._first(asked), asked == "auto")
        chosen = self.controller.k
        for_a_time = "" if seconds is None else f" for {seconds:g} s"
        self._changed_by_request(old, f"{asked}{for_a_time} was asked for")
        if seconds is not None:
            timer = asyncio.get_running_loop().call_later(seconds, self._back)
            self.temporary = Temporary(then, before, self.clock() + seconds, timer)
        await self._told_now()
        return chosen

    def _first(self, asked: Asked) -> int:
        if asked != "auto":
            return asked
        allowed = self.controller.allowed
        return min(max(self.controller.k, allowed[0]), allowed[-1])

    def _back(self) -> None:
        """The time of a temporary K is over."""
        old = self.controller.k
        self._end_temporary()
        self._changed_by_request(old, "the time that it was asked for is over")
        self._tell()

    def _end_temporary(self) -> None:
        """What was chosen before holds again; the engine is not told."""
        if self.temporary is not None:
            self.temporary.timer.cancel()
            self.controller.choose(self.temporary.k, self.temporary.then == "auto")
            self.temporary = None

    def _changed_by_request(self, old: int, why: str) -> None:
        self.changes["request"] += self.controller.k != old
        log.info("K = %d now, was %d: %s", self.controller.k, old, why)

    @asynccontextmanager
    async def steady(self, needed: bool = True) -> AsyncIterator[None]:
        """No window within the block, if it is `needed`: a request that draws by its own seed would draw otherwise."""
        if not needed:
            yield
            return
        self._steady += 1
        try:
            if self.controller.wanted != self.controller.k:
                self.controller.end_window()
                await self._told_now()
            yield
        finally:
            self._steady -= 1

    def _changed(self, old: int, new: int, why: str) -> None:
        self.changes["auto"] += 1
        log.info("K = %d now, was %d (auto): %s", new, old, why)

    def _tell(self) -> None:
        """Tells the engine in a task of its own where K has changed."""
        if self._told == self.controller.wanted or (self._telling is not None and not self._telling.done()):
            return
        self._telling = asyncio.get_running_loop().create_task(self._keep_telling())
        self._telling.add_done_callback(_logged)
        if self.controller.wanted != self.controller.k and self._watching is None:
            self._watch(self.estimator.times.steps)

    async def _told_now(self) -> None:
        self._tell()
        if self._telling is not None:
            await asyncio.shield(self._telling)

    async def _keep_telling(self) -> None:
        while self._set_length is not None and self._told != self.controller.wanted:
            k = self.controller.wanted
            try:
                await self._set_length(k)
            except Exception:
                self._set_length = None  # once is enough to say
                raise
            self._told = k

    def _watch(self, seen: int) -> None:
        """Looks now and then whether steps still come while a window is open."""
        self._watching = asyncio.get_running_loop().call_later(IDLE_S, self._look, seen)

    def _look(self, seen: int) -> None:
        self._watching = None
        if self.controller.wanted == self.controller.k:
            return
        if self.estimator.times.steps == seen:
            self.controller.end_window()
            self._tell()
        else:
            self._watch(self.estimator.times.steps)


def _logged(telling: asyncio.Task[None]) -> None:
    if not telling.cancelled() and (error := telling.exception()) is not None:
        log.warning("K could not be changed: %s", error)
