"""What `/metrics` counts of HTTP, and what HEAD gets."""

from __future__ import annotations

import logging

import httpx
import pytest

from app.engine import EngineFailure
from tests.app.asgi_client import Connection
from tests.app.conftest import build, complete, ready, served
from tests.app.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio
TOTAL = "t5gemma_http_requests_total"


async def counted(client: httpx.AsyncClient) -> list[str]:
    lines = (await client.get("/metrics")).text.splitlines()
    return [line for line in lines if line.startswith(f"{TOTAL}{{")]


async def test_any_method_is_one_series() -> None:
    """A client may call its method anything; the series stay as many as HTTP has methods (N18)."""
    async with served(api_keys=("one",)) as client:
        for number in range(50):
            await client.request(f"BREW{number}", "/v1/models")
        (line,) = await counted(client)
        assert 'method="other"' in line and line.endswith(" 50.0")


@pytest.mark.parametrize("error", [EngineFailure("boom"), RuntimeError("boom")])
async def test_a_broken_stream_is_an_error(error: Exception) -> None:
    """Its status 200 was sent before it broke (N19)."""
    async with served(FakeEngine(fail_after=3, failure=error)) as client:
        reply = await complete(client, stream=True)
        assert reply.status_code == 200 and '"code": 500' in reply.text
        (line,) = await counted(client)
        assert 'status="500"' in line and line.endswith(" 1.0")


async def test_a_client_that_left_its_stream_is_no_success() -> None:
    async with ready(build(FakeEngine(delay_s=0.01))) as app:
        connection = Connection(app, {"prompt": "Hi", "stream": True, "max_tokens": 200})
        await connection.body_parts(2)
        await connection.leave()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            (line,) = await counted(client)
        assert 'status="499"' in line


async def test_head_is_get_without_a_body() -> None:
    """On every route that has GET; what has not, says what it has (N20)."""
    async with served() as client:
        paths = [
            path
            for path, operations in (await client.get("/openapi.json")).json()["paths"].items()
            if "get" in operations
        ]
        assert {"/health", "/ready", "/metrics", "/v1/models", "/drafts"} <= set(paths)
        for path in [path.replace("{model}", "demo") for path in paths]:
            get, head = await client.get(path), await client.head(path)
            assert head.status_code == get.status_code == 200 and head.content == b""
            assert head.headers["content-type"] == get.headers["content-type"]
        head = await client.head("/v1/completions")
        assert head.status_code == 405 and "POST" in head.headers["allow"]
        assert (await client.head("/nope")).status_code == 404
        lines = await counted(client)
        assert any('handler="/v1/models",method="HEAD"' in line for line in lines), lines


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_is_logged_once(stream: bool) -> None:
    """By the request, not again by the layers around it (N23)."""
    logged: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: logged.append(record.name)  # type: ignore[method-assign]
    async with served(FakeEngine(fail_after=0)) as client:
        logging.getLogger("app").addHandler(handler)
        try:
            assert (await complete(client, stream=stream)).status_code == 500
        finally:
            logging.getLogger("app").removeHandler(handler)
    assert logged == ["app.completions"]
