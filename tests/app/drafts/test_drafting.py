"""K told to the engine: in order, never twice, no longer than wanted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.config.settings import Settings
from app.drafts import drafting as module
from app.drafts.drafting import Drafting
from app.engine import EngineDead
from plugin.drafts.steps import StepStats
from tests.app.conftest import DRAFT

pytestmark = pytest.mark.anyio


def made(first: int | None = 7, **settings: Any) -> Drafting:
    chosen = Settings(_env_file=None, baseline_dir=Path("/nowhere"), **settings)
    return Drafting(DRAFT if first else None, first, chosen)


class Engine:
    """Notes what it is told; a step goes on at K until the next."""

    def __init__(self, drafting: Drafting) -> None:
        self.told: list[int] = []
        self.drafting = drafting
        self.failure: Exception | None = None

    async def set_draft_length(self, k: int) -> None:
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        self.told.append(k)

    async def serve(self, steps: int) -> None:
        for _ in range(steps):
            k = self.told[-1]
            drafts = {k: (1, (1,) * k)} if k else {}
            self.drafting.record(StepStats(k, 1, 0.01 + 0.001 * k, drafts))
            await asyncio.sleep(0)
            await asyncio.sleep(0)


async def test_the_first_k() -> None:
    """As asked; auto begins with the checkpoint's own, within its limits."""
    for settings, k in (({}, 7), ({"k": "auto"}, 7), ({"k": "auto", "k_ceiling": 3}, 3)):
        drafting = made(7, **settings)
        engine = Engine(drafting)
        await drafting.attach(engine.set_draft_length)
        assert (engine.told, drafting.k) == ([k], k)
    drafting = made(None)
    await drafting.attach(Engine(drafting).set_draft_length)
    assert (drafting.k, drafting.max_k, drafting.switchable) == (0, 0, False)


async def test_windows_on_live_traffic() -> None:
    """A hundredth of the steps at K = 0 and others, and back each time; the ledger has the drafts of each K apart."""
    drafting = made()
    engine = Engine(drafting)
    await drafting.attach(engine.set_draft_length)
    await engine.serve(4000)
    assert 0 in engine.told and all(a != b for a, b in zip(engine.told, engine.told[1:], strict=False))
    assert set(engine.told[::2]) == {7} and drafting.k == 7
    assert 8 <= drafting.controller.measuring_steps <= 60
    assert drafting.ledger.lifetime(7).acceptance_rate == 1


async def test_what_was_asked_for_holds() -> None:
    drafting = made()
    engine = Engine(drafting)
    await drafting.attach(engine.set_draft_length)
    await drafting.choose(3)
    await drafting.choose(3)
    assert (engine.told, drafting.k, drafting.asked) == ([7, 3], 3, 3)
    await drafting.choose("auto")
    assert (drafting.k, drafting.asked, drafting.changes["request"]) == (3, "auto", 1)
    await drafting.choose(0)
    assert (engine.told, drafting.asked) == ([7, 3, 0], 0)


def timed(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> tuple[Drafting, list[float]]:
    """With a clock that a test turns: the loop's timers go by it, too."""
    now, loop = [1000.0], asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda: now[0])
    chosen = Settings(_env_file=None, baseline_dir=Path("/nowhere"), **settings)
    return Drafting(DRAFT, 7, chosen, lambda: now[0]), now


async def passes(now: list[float], seconds: float) -> None:
    now[0] += seconds
    for _ in range(5):
        await asyncio.sleep(0)


async def test_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then back to what was asked for before, a number or auto, which goes on with its K of then."""
    drafting, now = timed(monkeypatch)
    engine = Engine(drafting)
    await drafting.attach(engine.set_draft_length)
    assert await drafting.choose(0, 60) == 0
    await passes(now, 59)
    assert drafting.temporary is not None
    assert (drafting.asked, drafting.temporary.then, drafting.temporary.until) == (0, 7, 1060)
    await passes(now, 1)
    assert (engine.told, drafting.asked, drafting.temporary) == ([7, 0, 7], 7, None)
    await drafting.choose("auto")
    await drafting.choose(0, 60)
    await passes(now, 60)
    assert (engine.told[-2:], drafting.asked, drafting.k) == ([0, 7], "auto", 7)
    assert drafting.changes["request"] == 4


async def test_a_time_ends_when_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later request holds; a temporary one within a temporary one comes back to what was before both, once."""
    drafting, now = timed(monkeypatch)
    engine = Engine(drafting)
    await drafting.attach(engine.set_draft_length)
    await drafting.choose(0, 60)
    await drafting.choose(3)
    await passes(now, 600)
    assert (engine.told, drafting.asked, drafting.temporary) == ([7, 0, 3], 3, None)
    await drafting.choose(0, 60)
    await passes(now, 40)
    await drafting.choose(5, 60)
    await passes(now, 40)
    assert (engine.told[-1], drafting.asked) == (5, 5)
    await passes(now, 20)
    assert (engine.told[3:], drafting.asked, drafting.temporary) == ([0, 5, 3], 3, None)
    await drafting.choose(0, 60)
    await drafting.choose("auto")
    await passes(now, 600)
    assert (drafting.k, drafting.asked) == (3, "auto")  # not from 0 on


async def test_no_window_while_k_is_temporary(monkeypatch: pytest.MonkeyPatch) -> None:
    drafting, now = timed(monkeypatch)
    engine = Engine(drafting)
    await drafting.attach(engine.set_draft_length)
    await drafting.choose(0, 60)
    await engine.serve(3000)
    assert engine.told == [7, 0]
    await passes(now, 60)
    await engine.serve(300)
    assert 0 in engine.told[3:]


async def test_a_time_ends_with_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is told to one that goes; the next begins with what was asked for before."""
    drafting, now = timed(monkeypatch)
    engine = Engine(drafting)
    await drafting.attach(engine.set_draft_length)
    await drafting.choose(0, 60)
    drafting.detach()
    await passes(now, 60)
    assert engine.told == [7, 0] and drafting.temporary is None
    await drafting.attach(engine.set_draft_length)
    assert (engine.told, drafting.asked) == ([7, 0, 7], 7)


async def test_auto_within_floor_and_ceiling_when_asked_for() -> None:
    drafting = made(7, k_floor=2, k_ceiling=4)
    engine = Engine(drafting)
    await drafting.attach(engine.set_draft_length)
    await drafting.choose("auto")
    assert engine.told == [7, 4]


async def test_no_window_beside_a_seed() -> None:
    """One that is open is closed before the request begins."""
    drafting = made()
    engine = Engine(drafting)
    await drafting.attach(engine.set_draft_length)
    while engine.told[-1] == 7:
        await engine.serve(1)
    async with drafting.steady():
        assert engine.told[-1] == 7
        told = len(engine.told)
        await engine.serve(3000)
        assert len(engine.told) == told
    async with drafting.steady(False):
        await engine.serve(300)
        assert len(engine.told) > told


async def test_a_window_without_steps_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traffic ended within it: the next request is served at the chosen K."""
    monkeypatch.setattr(module, "IDLE_S", 0.02)
    drafting = made()
    engine = Engine(drafting)
    await drafting.attach(engine.set_draft_length)
    while engine.told[-1] == 7:
        await engine.serve(1)
    await asyncio.sleep(0.2)
    assert (engine.told[-1], drafting.controller.wanted) == (7, 7)


async def test_an_engine_that_cannot_be_told() -> None:
    """The request for another K fails; steps go on being counted, and the engine is not asked again and again."""
    drafting = made()
    engine = Engine(drafting)
    await drafting.attach(engine.set_draft_length)
    engine.failure = EngineDead("gone")
    with pytest.raises(EngineDead):
        await drafting.choose(3)
    engine.failure = None
    await engine.serve(300)
    assert engine.told == [7] and drafting.ledger.lifetime(7).drafts == 300
    with pytest.raises(RuntimeError, match="no other K"):
        await drafting.choose(5)


async def test_broken_steps_reach_no_estimate() -> None:
    drafting = made()
    drafting.record(StepStats(7, 1, float("nan"), {7: (1, (1,))}))
    assert drafting.ledger.refused == 1 and drafting.estimator.snapshot() is None


async def test_nothing_is_told_after_the_end() -> None:
    drafting = made()
    engine = Engine(drafting)
    await drafting.attach(engine.set_draft_length)
    drafting.detach()
    await engine.serve(500)
    assert engine.told == [7]
