"""One line a request: whichever way it ends there is one, and it says how the request went."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.bench.servers import free_port
from tests.app.asgi_client import Connection
from tests.app.completions.test_lifetime import until
from tests.app.conftest import build, complete, events, ready, served
from tests.app.fake_engine import FakeEngine
from tests.app.log_lines import Lines, logged

pytestmark = pytest.mark.anyio


@pytest.fixture
def told() -> Iterator[Lines]:
    with logged() as lines:
        yield lines


@pytest.mark.parametrize("level", ["none", "summary"])
async def test_a_completion(told: Lines, level: str) -> None:
    """Its numbers are those of the reply, also where the reply has none."""
    async with served(FakeEngine(k=3, per_step=3), request_metrics=level) as client:
        reply = await complete(client, "Hello", max_tokens=20, request_metrics="summary")
        alike = await complete(client, "Hello", max_tokens=20)
        assert ("metrics" in alike.json()) == (level != "none")
    first, second = told.requests
    metrics, usage = reply.json()["metrics"], reply.json()["usage"]
    spec = metrics["speculative_decoding"]
    expected = {
        "id": reply.json()["id"],
        "client": "127.0.0.1",
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "stream": False,
        "prompts": 1,
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": 20,
        "queue_ms": metrics["queue_time_ms"],
        "first_token_ms": metrics["time_to_first_token_ms"],
        "acceptance_rate": round(spec["draft_acceptance_rate"], 3),
        "mean_acceptance_length": round(spec["mean_acceptance_length"], 3),
        "steps_by_k": spec["steps_by_k"],
    }
    assert {name: first[name] for name in expected} == expected
    assert set(first) - set(expected) == {"time", "level", "logger", "message", "ms"}
    for line in (first, second):
        for name in ("id", "time", "ms"):
            line.pop(name)
    assert first == second


async def test_a_stream_at_its_end(told: Lines) -> None:
    engine = FakeEngine(hold=asyncio.Event())
    async with ready(build(engine)) as app:
        connection = Connection(app, {"prompt": "Hi", "stream": True, "max_tokens": 30})
        await until(lambda: bool(engine.running))
        assert not told.requests
        assert engine.hold is not None
        engine.hold.set()
        await connection.end()
    (line,) = told.requests
    assert (line["status"], line["stream"], line["completion_tokens"]) == (200, True, 30)


async def test_many_sequences(told: Lines) -> None:
    """Their times overlap, so that there is none but the whole; acceptance is of all together."""
    async with served(FakeEngine(k=3, per_step=3)) as client:
        chunks = events(await complete(client, ["Hi", "you"], n=2, max_tokens=10, stream=True))
        assert chunks
    (line,) = told.requests
    assert (line["prompts"], line["completion_tokens"]) == (2, 40)
    assert "queue_ms" not in line and line["acceptance_rate"] > 0 and line["steps_by_k"] == {"3": 16}


async def test_refusals(told: Lines) -> None:
    """Each has its line with the error's name and the field at fault, wherever it was refused."""
    async with served(api_keys=("one",), max_body_bytes=500) as client:
        key = {"Authorization": "Bearer one"}

        async def post(body: Any, path: str = "/v1/completions", **headers: str) -> int:
            return (await client.post(path, json=body, headers={**key, **headers})).status_code

        asked = [
            (await post({"prompt": "Hi", "n": 0}), 400, "BadRequest", "n"),
            (await post({"prompt": "Hi", "temperature": "hot"}), 400, "BadRequest", "temperature"),
            (await post({"prompt": "Hi"}, Authorization="Bearer two"), 401, "Unauthorized", None),
            (await post({"prompt": "Hi", "model": "x\ny"}), 404, "NotFound", "model"),
            (await post({}, "/v1/chat/completions"), 404, "NotFound", None),
            (await post({}, "/nowhere"), 404, None, None),
            (await post({}, "/v1/models"), 405, None, None),
            (await post({"prompt": "x" * 600}), 413, "BodyTooLarge", None),
            (await post({"prompt": "Hi"}, **{"Content-Type": "text/plain"}), 415, "NotJson", None),
            (await post({"k": 1}, "/drafts/k"), 409, "Conflict", "k"),
        ]
    for line, (status, expected, error, param) in zip(told.requests, asked, strict=True):
        assert line["status"] == status == expected
        assert (line.get("error"), line.get("param")) == (error, param)
    assert "x\\ny" not in told.all  # what a client calls a model is its own affair


async def test_busy_loading_and_draining(told: Lines) -> None:
    """The four kinds of 503 are told apart."""
    engine = FakeEngine(hold=asyncio.Event())
    app = build(engine, max_num_seqs=1, max_queued_requests=0)
    gateway = app.state.gateway
    async with (
        ready(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://s") as client,
    ):
        running = asyncio.create_task(complete(client))
        await until(lambda: bool(engine.running))
        for phase in ("ready", "loading", "draining", "dead"):
            gateway.phase = phase
            assert (await complete(client)).status_code == 503
        gateway.phase = "ready"
        assert engine.hold is not None
        engine.hold.set()
        await running
    *refused, last = told.requests
    assert [line["error"] for line in refused] == ["QueueFull", "Loading", "ShuttingDown", "Dead"]
    assert last["status"] == 200 and "error" not in last


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves(told: Lines, stream: bool) -> None:
    """Once, with what it was sent."""
    async with ready(build(FakeEngine(delay_s=0.005))) as app:
        connection = Connection(app, {"prompt": "Hi", "stream": stream, "max_tokens": 400})
        await (connection.body_parts(2) if stream else until(lambda: bool(app.state.gateway.running)))
        await connection.leave()
    (line,) = told.requests
    assert (line["status"], line["error"], line["stream"]) == (499, "ClientGone", stream)
    assert (line["completion_tokens"] > 1) == stream


async def test_a_client_that_leaves_half_a_body(told: Lines) -> None:
    async with ready(build(FakeEngine())) as app:
        connection = Connection(app, {"prompt": "Hi"}, stalls=True)
        await until(lambda: bool(app.state.gateway.running))
        connection._parts.clear()
        await connection.leave()
    (line,) = told.requests
    assert (line["status"], line["error"]) == (499, "ClientGone")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after", [0, 3])
async def test_an_engine_that_fails(told: Lines, stream: bool, after: int) -> None:
    """A broken stream has the status of what broke it; the frames are in a line of their own."""
    async with served(FakeEngine(fail_after=after)) as client:
        reply = await complete(client, stream=stream)
    (line,) = told.requests
    assert (line["status"], line["error"]) == (500, "InternalServerError")
    (other,) = [json.loads(one) for one in told.json if json.loads(one)["level"] == "error"]
    assert other["message"].startswith(f"{line['id']}: RuntimeError (") and reply.status_code in (200, 500)


async def test_a_deadline(told: Lines) -> None:
    async with served(FakeEngine(delay_s=0.02), request_timeout_s=0.1) as client:
        await complete(client, max_tokens=400, stream=True)
    (line,) = told.requests
    assert (line["status"], line["error"]) == (504, "Deadline") and line["ms"] >= 100


async def test_a_cancellation_from_outside(told: Lines) -> None:
    """As by a server that waits for no client any more."""
    async with ready(build(FakeEngine(delay_s=0.01))) as app:
        connection = Connection(app, {"prompt": "Hi", "stream": True, "max_tokens": 400})
        await connection.body_parts(2)
        connection._task.cancel()
        await asyncio.gather(connection._task, return_exceptions=True)
    (line,) = told.requests
    assert line["status"] == 500


async def test_an_unforeseen_error(told: Lines) -> None:
    async with served() as client:
        client._transport.app.state.gateway.identity = None  # type: ignore[attr-defined]
        assert (await client.get("/v1/models")).status_code == 500
    (line,) = told.requests
    assert (line["status"], line["error"]) == (500, "InternalServerError")
    (other,) = [one for one in told.text if one.startswith("ERROR")]
    assert "GET /v1/models: AttributeError (" in other and len(other.splitlines()) == 1


async def test_what_is_polled(told: Lines) -> None:
    """No line, unless it is refused."""
    paths = ("/health", "/ready", "/metrics", "/metrics/", "/drafts", "/drafts/stats", "/page/main.js")
    async with served(api_keys=("one",), root_path="/api") as client:
        for path in paths:
            for prefix in ("", "/api"):
                for method in ("GET", "HEAD"):
                    headers = {"Authorization": "Bearer one"}
                    assert (await client.request(method, prefix + path, headers=headers)).status_code == 200
        client._transport.app.state.gateway.phase = "loading"  # type: ignore[attr-defined]
        assert (await client.get("/ready")).status_code == 503
        assert not told.requests
        client._transport.app.state.gateway.phase = "ready"  # type: ignore[attr-defined]
        assert (await client.get("/drafts")).status_code == 401
        assert (await client.post("/health", headers=headers)).status_code == 405
        assert (await client.get("/v1/models", headers=headers)).status_code == 200
    assert [(line["path"], line["status"]) for line in told.requests] == [
        ("/drafts", 401),
        ("/health", 405),
        ("/v1/models", 200),
    ]


async def test_what_a_client_writes_stays_in_its_line(told: Lines) -> None:
    """Paths, methods, ids and prompts with line ends, control characters and what looks like fields."""
    evil = "\nINFO: status=200 \x1b[2J\u2028"
    async with served(log_prompts=True) as client:
        await client.get("/a%0Astatus=200%1b%e2%80%a8" + "x" * 500)
        await client.request("BR=W", "/v1/models")
        await client.get("/v1/models", headers={"X-Request-Id": 'a"status=200'})
        await complete(client, evil, request_id="a'b=c", max_tokens=2)
        refused = await complete(client, "Hi", request_id="a\nb")
        assert refused.status_code == 400
    assert all(len(line.splitlines()) == 1 and line.isprintable() for line in [*told.text, *told.json])
    text = [line for line in told.text if "request id=" in line]
    assert len(text) == len(told.requests) == 5
    assert "path='/a\\nstatus=200\\x1b\\u2028xxx" in text[0] and len(told.requests[0]["path"]) == 256
    assert "method='BR=W'" in text[1] and "id='a\"status=200'" in text[2]
    assert 'id="cmpl-a\'b=c"' in text[3] and told.requests[3]["prompt"] == evil


@pytest.mark.parametrize("form", ["text", "json"])
def test_under_uvicorn(tmp_path: Path, form: str) -> None:
    """Its own access log adds no second line; polls have none at all; with `json` every line is an object."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "tests.app.fake_server:app", "--port", str(port)]
    variables = {**os.environ, "FAKE": "{}", "T5GEMMA_LOG_FORMAT": form}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, env=variables, stderr=log, stdout=log)
    try:
        retrying = httpx.HTTPTransport(retries=8)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", transport=retrying) as client:
            while client.get("/ready").status_code != 200:
                time.sleep(0.02)
            for path in ("/v1/models", "/nowhere", "/drafts/stats"):
                client.get(path)
            client.post("/v1/completions", json={"prompt": "Hi", "stream": True})
    finally:
        process.terminate()
        process.wait(20)
    lines = (tmp_path / "log").read_text().splitlines()
    assert sum("/v1/models" in line for line in lines) == sum("/nowhere" in line for line in lines) == 1
    assert sum("/v1/completions" in line and "try: curl" not in line for line in lines) == 1
    assert not any("/ready" in line or "/drafts" in line for line in lines)
    assert any("settings: " in line and f"T5GEMMA_LOG_FORMAT={form} (environment)" in line for line in lines)
    if form == "json":
        assert all(json.loads(line)["logger"] for line in lines)
