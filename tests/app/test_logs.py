"""What is in the log, and what never is."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from app.logs import JsonLines, TextLines, configure, event, lost, printable
from tests.app.conftest import complete, served
from tests.app.fake_engine import FakeEngine
from tests.app.log_lines import Lines, logged

pytestmark = pytest.mark.anyio
MARKERS = ("MARKER-7f3a", "MARKER-stop")
EVIL = "a\nINFO: b\r\x1b[31m\x07\x85\u2028\x7f"


@pytest.fixture
def told() -> Iterator[Lines]:
    with logged() as lines:
        yield lines


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


async def test_no_prompt_in_log_or_metrics(told: Lines, caplog: pytest.LogCaptureFixture) -> None:
    """Neither an answered nor a failed request leaves its prompt behind (E16)."""
    caplog.set_level(logging.DEBUG)
    metrics = await ask(FakeEngine())
    lines = (
        "\n".join(f"{record.getMessage()} {record.exc_text or ''}" for record in caplog.records) + told.all
    )
    for marker in MARKERS:
        assert marker not in lines and marker not in metrics
    for part in ("id=cmpl-", "status=200", "status=500", "prompt_tokens=12", "completion_tokens=16"):
        assert part in lines


async def test_prompts_when_asked_for(told: Lines) -> None:
    """`log_prompts` puts prompts into the log, which never has them otherwise (E16)."""
    await ask(FakeEngine(), log_prompts=True)
    assert f"prompt={MARKERS[0]}" in told.all and f'"prompt": "{MARKERS[0]}"' in told.all


def record_of(message: str, *values: object, **fields: Any) -> logging.LogRecord:
    record = logging.LogRecord("app.x", logging.INFO, "f", 1, message, values, None)
    record.fields = fields
    return record


def test_json_lines() -> None:
    line = JsonLines().format(record_of("said %s", '"it"\n', status=200))
    found = json.loads(line)
    assert "\n" not in line and (found["message"], found["status"], found["level"]) == (
        'said "it"\n',
        200,
        "info",
    )


def test_text_lines() -> None:
    fields = {"id": "x", "ms": 1.5, "stream": True, "steps_by_k": {7: 8, 3: 1}, "path": "/a b", "empty": ""}
    line = TextLines().format(record_of("said %s", "it", **fields))
    assert line.endswith(" app.x: said it id=x ms=1.5 stream=true steps_by_k=7:8,3:1 path='/a b' empty=''")


@pytest.mark.parametrize("text", [EVIL, "a=b", "it's", '"', "\\n", "é ü", "\ud800"])
def test_no_value_looks_like_another_line_or_field(text: str) -> None:
    """As a message and as a field, in both forms; UTF-8 can write it."""
    for formatter in (TextLines(), JsonLines()):
        line = formatter.format(record_of("%s", text, path=text, status=200))
        assert len(line.splitlines()) == 1 and line.isprintable()
        line.encode()
    line = TextLines().format(record_of("x", path=text, status=200))
    assert line.endswith(f" path={text!r} status=200") and line.count("=") == 2 + text.count("=")
    assert json.loads(JsonLines().format(record_of("x", path=text)))["path"] == text


def test_a_list_is_one_value() -> None:
    """A prompt may be one."""
    line = TextLines().format(record_of("x", prompt=["a\nb", "c"], status=200))
    assert line.endswith(""" prompt="['a\\\\nb', 'c']" status=200""") and len(line.splitlines()) == 1


def test_printable() -> None:
    assert printable("für 日本 ✓") == "für 日本 ✓"
    assert printable("a\n\x1b\u2028b") == "a\\n\\x1b\\u2028b"


def test_a_traceback_has_lines_of_its_own() -> None:
    try:
        raise KeyError("x")
    except KeyError:
        record = logging.LogRecord("app.x", logging.ERROR, "f", 1, "lost", (), sys.exc_info())
    assert TextLines().format(record).splitlines()[-1] == "KeyError: 'x'"
    assert len(JsonLines().format(record).splitlines()) == 1


def test_fields_without_a_value_are_left_out(told: Lines) -> None:
    event(logging.getLogger("app.x"), "said", {"a": None, "b": 0, "c": False})
    (line,) = map(json.loads, told.json)
    assert "a" not in line and (line["b"], line["c"]) == (0, False)


@pytest.mark.parametrize("form", ["text", "json"])
def test_uvicorn_writes_no_line_a_request(monkeypatch: pytest.MonkeyPatch, form: Any) -> None:
    """Its access log is off; its other lines become objects with `json`."""
    loggers = {
        name: logging.getLogger(name) for name in ("app", "uvicorn", "uvicorn.error", "uvicorn.access")
    }
    for logger in loggers.values():
        monkeypatch.setattr(logger, "handlers", [logging.StreamHandler()])
        monkeypatch.setattr(logger, "propagate", True)
    configure(form)
    assert not loggers["uvicorn.access"].hasHandlers()
    for name in ("uvicorn", "uvicorn.error"):
        assert isinstance(loggers[name].handlers[0].formatter, JsonLines) == (form == "json")
    assert isinstance(loggers["app"].handlers[0].formatter, JsonLines if form == "json" else TextLines)


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_line_about_lost_lines(monkeypatch: pytest.MonkeyPatch, form: Any) -> None:
    """It is one as all others are; before the form is known it is text."""
    logger = logging.getLogger("app")
    monkeypatch.setattr(logger, "handlers", [])
    early = lost(7).decode()
    assert early.startswith("WARNING:") and early.endswith(" lines=7\n")
    configure(form)
    line = lost(12).decode()
    if form == "text":
        assert line.startswith("WARNING:") and line.endswith(" lines=12\n")
    else:
        assert json.loads(line)["lines"] == 12 and json.loads(line)["level"] == "warning"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after", [0, 2])
async def test_no_prompt_of_an_exception(caplog: pytest.LogCaptureFixture, stream: bool, after: int) -> None:
    """An exception that quotes prompt and stop, and its cause, are told by type and place alone (E16)."""
    caplog.set_level(logging.DEBUG)
    failure = RuntimeError(f"cannot do {MARKERS[0]}")
    failure.__cause__ = KeyError(MARKERS[1])
    engine = FakeEngine(failure=failure, fail_after=after)
    with logged() as told:
        async with served(engine) as client:
            reply = await complete(client, MARKERS[0], stop=[MARKERS[1]], stream=stream)
            answers = reply.text + (await client.get("/metrics")).text
    formatter = logging.Formatter()
    lines = "\n".join([*(formatter.format(record) for record in caplog.records), told.all])
    for marker in MARKERS:
        assert marker not in lines and marker not in answers
    assert "RuntimeError (" in lines and "<- KeyError" in lines and "fake_engine.py:" in lines
