"""What a look at a server finds, in each state that it may be in."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from app.top.server import DRAFTS_EVERY_S, Look, Server, engine_of
from tests.app.conftest import build, complete, ready
from tests.app.fake_engine import FakeEngine
from tests.app.top.stub import DRAFTS, READY, SERIES, client_of, table

pytestmark = pytest.mark.anyio


async def look(replies: dict[str, Any], **options: Any) -> Look:
    async with client_of(replies, **options) as client:
        return await Server(client).look()


async def test_the_gateway() -> None:
    """Our own server over a fake engine, with a draft: its replies are read as they are."""
    app = build(FakeEngine(k=3, per_step=3))
    transport = httpx.ASGITransport(app)
    async with ready(app), httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        await complete(client, max_tokens=40)
        found = await Server(client).look()
        assert (found.state, found.reason) == ("ready", None)
        assert found.stats is not None and found.drafts is not None
        assert found.stats.lifetime.drafts > 0 and found.drafts["draft"] == "demo"
        assert found.engine["in_flight"] == 0
        app.state.gateway.phase = "draining"
        assert (await Server(client).look()).state == "draining"


async def test_the_gateway_while_it_loads() -> None:
    app = build(FakeEngine(k=3))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        found = await Server(client).look()
    assert (found.state, found.stage) == ("loading", "start")
    assert found.seconds is not None and found.drafts is not None and found.drafts["draft"] == "demo"


async def test_the_gateway_with_keys() -> None:
    app = build(FakeEngine(k=3), api_keys="one,two")
    transport = httpx.ASGITransport(app)
    for key, state, words in (
        (None, "key_required", "put it into OPENAI_API_KEY"),
        ("three", "key_required", "none of the server's"),
        ("two", "loading", None),
    ):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        client = httpx.AsyncClient(transport=transport, base_url="http://server", headers=headers)
        async with client:
            found = await Server(client).look()
        assert found.state == state
        assert found.reason is None if words is None else words in str(found.reason)


@pytest.mark.parametrize("phase", ["failed", "dead", "stopped", "draining"])
async def test_phases(phase: str) -> None:
    told = httpx.Response(503, json={**READY, "phase": phase})
    assert (await look(table(ready=told))).state == phase


@pytest.mark.parametrize(
    ("replies", "words"),
    [
        ({"ready": httpx.ConnectError("refused")}, "ConnectError: refused"),
        ({"ready": httpx.ReadTimeout("")}, "ReadTimeout"),
        (table(ready=httpx.Response(502, text="<html>")), "/ready answers 502"),
        (table(ready=httpx.Response(200, json=[1])), "/ready answers 200"),
        ({}, "/drafts/stats answers 404"),
        (table(drafts={"family": 3}), "/drafts answers 200"),
        (table(drafts_stats={"k": 3}), "/drafts/stats answers 200"),
        (table(metrics=httpx.Response(200, text='vllm:num_requests_running{engine="0')), "ValueError"),
    ],
)
async def test_unreachable(replies: dict[str, Any], words: str) -> None:
    """Nothing there, or something that is no such server."""
    found = await look(replies)
    assert found.state == "unreachable" and words in str(found.reason)
    assert found.stats is None and found.drafts is None


async def test_it_comes_back() -> None:
    replies: dict[str, Any] = {"ready": httpx.ConnectError("refused")}
    async with client_of(replies) as client:
        server = Server(client)
        assert (await server.look()).state == "unreachable"
        replies.update(table())
        assert (await server.look()).state == "ready"


async def test_plain_vllm_serve() -> None:
    """It has no /ready; its /health says whether the engine lives."""
    assert (await look(table(ready=None, health={}))).state == "ready"
    assert (await look(table(ready=None, health=httpx.Response(503)))).state == "dead"


async def test_without_metrics() -> None:
    """A proxy may keep them to itself."""
    found = await look(table(metrics=httpx.Response(403)))
    assert found.state == "ready" and found.engine == {}


async def test_what_is_loaded_is_asked_seldom() -> None:
    """And whenever the state has changed, since then another draft may be served."""
    now, seen, replies = 0.0, list[str](), table()
    async with client_of(replies, seen) as client:
        server = Server(client, lambda: now)
        for _ in range(3):
            await server.look()
        assert seen.count("/drafts") == 1
        now = DRAFTS_EVERY_S + 1
        await server.look()
        assert seen.count("/drafts") == 2
        replies["ready"] = httpx.Response(503, json={**READY, "phase": "loading"})
        replies["drafts"] = {**DRAFTS, "draft": "another"}
        found = await server.look()
        assert seen.count("/drafts") == 3
        assert found.drafts is not None and found.drafts["draft"] == "another"


async def test_series_are_added_up() -> None:
    assert engine_of(SERIES % 1000) == {"running": 4, "waiting": 2, "in_flight": 6, "generated_tokens": 1000}
    assert engine_of("process_cpu_seconds_total 1.0\n") == engine_of("") == {}
