"""The probe before /ready: its figures, its sentence, and that nobody's counters see it (N06)."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterator

import pytest

from app.engine import EngineDead, GenerateRequest, InvalidRequest, Step
from app.probing import PROMPTS, TOKENS
from tests.app.conftest import build, complete, ready, served
from tests.app.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """The log of the drafts; the package's logger passes nothing on to the root."""
    logger = logging.getLogger("app.drafts")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


async def test_a_good_draft(said: pytest.LogCaptureFixture) -> None:
    """Four tokens a step: figures without a warning, in /drafts and in the log."""
    async with served(FakeEngine(k=3, per_step=4), probe=True) as client:
        told = (await client.get("/drafts")).json()["probe"]
    steps = len(PROMPTS) * TOKENS // 4
    assert (told["prompts"], told["drafts"], told["accepted_tokens"]) == (len(PROMPTS), steps, 3 * steps)
    assert (told["acceptance_rate"], told["mean_acceptance_length"], told["warning"]) == (1.0, 4.0, None)
    assert f"4.00 tokens a step on {len(PROMPTS)} canned prompts" in said.text


async def test_a_useless_draft_is_said_so(said: pytest.LogCaptureFixture) -> None:
    """It is served, since its output is right; the sentence holds the numbers."""
    async with served(FakeEngine(k=3, per_step=1), probe=True) as client:
        told = (await client.get("/drafts")).json()["probe"]
        assert (await complete(client)).status_code == 200
    assert told["mean_acceptance_length"] == 1.0
    assert "1.00 tokens a step on 6 canned prompts (0 of 720 draft tokens accepted)" in told["warning"]
    assert told["warning"] in said.text


async def test_it_is_counted_nowhere() -> None:
    async with served(FakeEngine(k=3, per_step=4), probe=True) as client:
        assert (await client.get("/drafts/stats")).json()["lifetime"]["drafts"] == 0
        assert 't5gemma_drafts_total{k="3"} 0.0' in (await client.get("/metrics")).text
        await complete(client)
        assert (await client.get("/drafts/stats")).json()["lifetime"]["drafts"] > 0


async def test_switched_off_or_without_a_draft() -> None:
    for engine, settings in ((FakeEngine(k=3), {"probe": False}), (FakeEngine(), {"probe": True})):
        async with served(engine, **settings) as client:
            assert (await client.get("/drafts")).json()["probe"] is None
            assert engine.seen == []


async def test_prompts_that_do_not_fit() -> None:
    """The draft is not judged by half a question."""
    engine = FakeEngine(k=3, per_step=1, max_encoder_len=64)
    async with served(engine, probe=True, max_encoder_len=64) as client:
        told = (await client.get("/drafts")).json()["probe"]
    assert told["prompts"] == len(engine.seen) == sum(len(text) < 64 for text in PROMPTS) == 1
    engine = FakeEngine(k=3, per_step=1, max_encoder_len=5)
    async with served(engine, probe=True, max_encoder_len=5) as client:
        told = (await client.get("/drafts")).json()["probe"]
    assert (told["prompts"], told["warning"], engine.seen) == (0, None, [])


async def test_prompts_that_the_engine_refuses() -> None:
    """No figure, no warning, and the server serves."""
    engine = FakeEngine(k=3, refuse=InvalidRequest("no"))
    async with served(engine, probe=True) as client:
        told = (await client.get("/drafts")).json()["probe"]
        assert (told["prompts"], told["mean_acceptance_length"], told["warning"]) == (0, None, None)


class Dying(FakeEngine):
    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Step, None]:
        raise EngineDead("the engine process ended; its own lines above say why")
        yield


async def test_an_engine_that_does_not_survive_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that names the checkpoints, and the end of the start; no traceback."""
    records: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.getLogger("app"), "handlers", [handler := logging.Handler()])
    monkeypatch.setattr(handler, "emit", records.append)
    monkeypatch.setattr("app.factory.signal.raise_signal", lambda number: None)
    app = build(Dying(k=3), probe=True)
    gateway = app.state.gateway
    async with ready(app):
        assert gateway.phase == "failed"
        gateway.phase, gateway.failure = "ready", None  # or the lifespan ends the process
    (told,) = [record for record in records if "did not start" in record.getMessage()]
    words = (
        "demo-verifier with the draft demo was loaded and cannot run: the engine did not survive the probe"
    )
    assert words in told.getMessage() and told.exc_info is None
