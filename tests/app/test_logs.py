"""What is in the log, and what never is."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from app.logs import JsonLines
from tests.app.conftest import complete, served
from tests.app.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio
MARKERS = ("MARKER-7f3a", "MARKER-stop")


async def ask(engine: FakeEngine, **settings: Any) -> str:
    """Success, 400 and 500 with the markers in prompt and stop; the metrics afterwards."""
    async with served(engine, **settings) as client:
        for more in ({}, {"temperature": "hot"}, {"n": 0}, {"stream": True}):
            await complete(client, MARKERS[0], stop=[MARKERS[1]], **more)
        engine.failure, engine.fail_after = RuntimeError("x"), 0
        for stream in (False, True):
            reply = await complete(client, MARKERS[0], stop=[MARKERS[1]], stream=stream)
            assert reply.status_code == 500
        return (await client.get("/metrics")).text


async def test_no_prompt_in_log_or_metrics(caplog: pytest.LogCaptureFixture) -> None:
    """Neither an answered nor a failed request leaves its prompt behind (E16)."""
    caplog.set_level(logging.DEBUG)
    metrics = await ask(FakeEngine())
    lines = "\n".join(f"{record.getMessage()} {record.exc_text or ''}" for record in caplog.records)
    for marker in MARKERS:
        assert marker not in lines and marker not in metrics
    for part in ("id=cmpl-", "status=200", "status=500", "prompt_tokens=12", "completion_tokens=16"):
        assert part in lines


async def test_prompts_when_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    """`log_prompts` puts prompts into the log, which never has them otherwise (E16)."""
    await ask(FakeEngine(), log_prompts=True)
    assert any(MARKERS[0] in record.getMessage() for record in caplog.records)


def test_json_lines() -> None:
    record = logging.LogRecord("app.x", logging.INFO, "f", 1, "said %s", ('"it"\n',), None)
    record.fields = {"status": 200}
    line = JsonLines().format(record)
    told = json.loads(line)
    assert "\n" not in line and (told["message"], told["status"], told["level"]) == (
        'said "it"\n',
        200,
        "info",
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after", [0, 2])
async def test_no_prompt_of_an_exception(caplog: pytest.LogCaptureFixture, stream: bool, after: int) -> None:
    """An exception that quotes prompt and stop, and its cause, are told by type and place alone (E16)."""
    caplog.set_level(logging.DEBUG)
    failure = RuntimeError(f"cannot do {MARKERS[0]}")
    failure.__cause__ = KeyError(MARKERS[1])
    engine = FakeEngine(failure=failure, fail_after=after)
    async with served(engine) as client:
        reply = await complete(client, MARKERS[0], stop=[MARKERS[1]], stream=stream)
        told = reply.text + (await client.get("/metrics")).text
    formatter = logging.Formatter()
    lines = "\n".join(formatter.format(record) for record in caplog.records)
    for marker in MARKERS:
        assert marker not in lines and marker not in told
    assert "RuntimeError (" in lines and "<- KeyError" in lines and "fake_engine.py:" in lines
