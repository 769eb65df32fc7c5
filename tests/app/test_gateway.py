"""How a start is logged: the settings it has, and why it failed."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from typing import Any, Self

import httpx
import pytest
from pydantic import BaseModel, model_validator

from app.config.settings import SettingsError
from app.engine import EnginePlan
from app.logs import JsonLines
from app.process import child_processes
from tests.app.conftest import build, complete, ready
from tests.app.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio


async def test_settings_are_logged_without_keys(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line at start has the settings in use, defaults included; of keys only how many there are."""
    lines: list[str] = []
    caplog.set_level(logging.INFO, "app")  # a logger that has handlers keeps its level
    monkeypatch.setattr(logging.getLogger("app"), "handlers", [handler := logging.Handler()])
    monkeypatch.setattr(handler, "emit", lambda record: lines.append(record.getMessage()))
    async with ready(build(FakeEngine(), max_model_len=99, api_keys="sk-one,sk-two")):
        pass
    (line,) = [line for line in lines if line.startswith("settings: ")]
    assert "T5GEMMA_MAX_MODEL_LEN=99" in line and "T5GEMMA_MAX_NUM_SEQS=4" in line
    assert "sk-" not in line and line.count("**********") == 2
    assert "T5GEMMA_DRAFT" not in line


class Scheduler(BaseModel):
    """Refuses as vLLM's configurations do."""

    tokens: int = 0
    rows: int = 0

    @model_validator(mode="after")
    def _never(self) -> Self:
        raise ValueError("max_num_batched_tokens (32) is smaller than\nmax_model_len (64)")


def _refused() -> None:
    Scheduler()


def _refused_types() -> None:
    Scheduler(tokens="a", rows="b")


def _words() -> None:
    raise SettingsError("T5GEMMA_K=9 is too much")


def _unforeseen() -> None:
    raise KeyError("layers")


@pytest.mark.parametrize(
    ("fails", "failure", "traced"),
    [
        (
            _refused,
            "ValidationError: max_num_batched_tokens (32) is smaller than max_model_len (64)",
            False,
        ),
        (_refused_types, "ValidationError: Input should be a valid integer, unable to parse", False),
        (_words, "SettingsError: T5GEMMA_K=9 is too much", False),
        (_unforeseen, "KeyError: 'layers'", True),
    ],
)
async def test_failed_start(fails: Any, failure: str, traced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line has the reason with its numbers; only what nobody foresaw has a traceback, in JSON too (C08)."""
    lines: list[str] = []
    monkeypatch.setattr(logging.getLogger("app"), "handlers", [handler := logging.Handler()])
    monkeypatch.setattr(handler, "emit", lambda record: lines.append(JsonLines().format(record)))
    app = build(FakeEngine())
    gateway = app.state.gateway

    def factory(plan: EnginePlan) -> FakeEngine:
        fails()
        raise AssertionError("did not fail")

    gateway._factory, gateway.on_end = factory, lambda: None
    monkeypatch.setattr("app.factory.signal.raise_signal", lambda number: None)
    async with ready(app):
        assert gateway.phase == "failed" and gateway.failure.startswith(failure)
        assert "\n" not in gateway.failure
        if fails is _refused_types:
            assert gateway.failure.count("valid integer") == 2
        gateway.phase, gateway.failure = "ready", None  # or the lifespan ends the process
    (told,) = [line for line in map(json.loads, lines) if "did not start" in line["message"]]
    assert failure in told["message"]
    assert ("in _unforeseen" in told.get("trace", "")) == traced and ("trace" in told) == traced


async def test_a_second_life_is_refused() -> None:
    """The same application started again never became ready; it says why instead (N22)."""
    app = build(FakeEngine())
    async with ready(app):
        pass
    with pytest.raises(RuntimeError, match="started before"):
        async with ready(app):
            pass
    assert app.state.gateway.phase == "stopped"


async def test_two_lives_at_once_are_refused() -> None:
    """The first serves on (N22)."""
    app = build(FakeEngine())
    web = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server")
    async with ready(app), web as client:
        with pytest.raises(RuntimeError, match="started before"):
            async with ready(app):
                pass
        assert (await complete(client)).status_code == 200


class Odd(FakeEngine):
    """Cannot always be asked how it is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.asked, self.often = 0, asyncio.Event()

    async def check_health(self) -> None:
        self.asked += 1
        if self.asked < 4:
            raise OSError("too many open files")
        if self.asked > 5:
            self.often.set()
        await super().check_health()


class Stuck(FakeEngine):
    """Answers nothing while `hangs` is not set, and counts how often it did."""

    answers = 0

    async def respond(self) -> None:
        await super().respond()
        self.answers += 1


async def test_an_engine_that_hangs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It lives and does nothing: not ready after a tenth of the time, ready once it goes on; then it never does, and
    the end is a death's, of which running requests are told.
    """
    monkeypatch.setattr("app.watching.ASKS_S", 0.001)
    caplog.set_level(logging.INFO, "app")
    monkeypatch.setattr(logging.getLogger("app"), "propagate", True)
    engine = Stuck()
    app = build(engine, hang_timeout_s=1.0)
    gateway, web = (
        app.state.gateway,
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server"),
    )

    async def readiness(status: int) -> None:
        while (await client.get("/ready")).status_code != status:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async with ready(app), web as client, asyncio.timeout(10):
        gateway.on_end = (ended := asyncio.Event()).set
        while not engine.answers:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        engine.hangs = asyncio.Event()
        await readiness(503)
        assert (await client.get("/health")).status_code == 200 and gateway.phase == "ready"
        assert "t5gemma_ready 0.0" in (await client.get("/metrics")).text
        engine.hangs.set()
        await readiness(200)
        engine.hangs, engine.hold = asyncio.Event(), asyncio.Event()
        waiting = asyncio.create_task(complete(client))
        await ended.wait()
        assert gateway.phase == "dead" and "T5GEMMA_HANG_TIMEOUT_S" in gateway.failure
        assert (await client.get("/health")).status_code == 503
        assert (await waiting).status_code == 503
        gateway.phase, gateway.failure = "ready", None  # or the lifespan ends the process
    told = [record.getMessage() for record in caplog.records]
    assert [line for line in told if "not answered" in line] and "the engine answers again" in told


async def test_a_pause_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped container loses one short wait, however long it stood."""
    monkeypatch.setattr("app.watching.ASKS_S", 0.001)
    engine = Stuck()
    app = build(engine, hang_timeout_s=2.0)
    async with ready(app):
        engine.hangs = asyncio.Event()
        await asyncio.sleep(0.05)
        time.sleep(2.5)  # noqa: ASYNC251  (the whole process stands)
        engine.hangs.set()
        before = engine.answers
        while engine.answers == before:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert app.state.gateway.ready


async def test_the_watch_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no death does not end the watch, and is logged once; the death that follows is seen."""
    lines: list[str] = []
    monkeypatch.setattr(logging.getLogger("app"), "handlers", [handler := logging.Handler()])
    monkeypatch.setattr(handler, "emit", lambda record: lines.append(record.getMessage()))
    monkeypatch.setattr("app.watching.POLL_S", 0.005)
    engine = Odd()
    app = build(engine)
    gateway = app.state.gateway
    async with ready(app), asyncio.timeout(5):
        gateway.on_end = (ended := asyncio.Event()).set
        await engine.often.wait()
        assert gateway.phase == "ready"
        engine.dead = True
        await ended.wait()
        assert gateway.phase == "dead"
        gateway.phase, gateway.failure = "ready", None  # or the lifespan ends the process
    (line,) = [line for line in lines if "could not be asked" in line]
    assert line.endswith("OSError: too many open files")


@pytest.mark.parametrize("fails", [True, False], ids=["failed", "built"])
def test_loading_that_outlives_the_server_says_nothing(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread cannot be interrupted: it ends when the event loop is closed, by whatever its lost processes raise."""
    monkeypatch.setattr(child_processes, "LOADING_STOP_S", 0.1)
    gateway = build(FakeEngine()).state.gateway
    ended = threading.Event()

    def factory(plan: EnginePlan) -> FakeEngine:
        ended.wait()
        if fails:
            raise RuntimeError("Engine core initialization failed")
        return FakeEngine()

    async def life() -> None:
        gateway.start()
        await gateway.stop()

    gateway._factory = factory
    asyncio.run(life())
    (loading,) = [thread for thread in threading.enumerate() if thread.name == "load-engine"]
    ended.set()
    loading.join()
    assert gateway.phase == "stopped"
