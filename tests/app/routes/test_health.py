"""Probes and metrics."""

from __future__ import annotations

import asyncio
import threading

import httpx
import pytest
from asgi_lifespan import LifespanManager
from prometheus_client import REGISTRY, Counter

from app.engine import EnginePlan
from tests.app.conftest import build, complete, ready, served
from tests.app.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio


async def test_loading() -> None:
    """/health answers while the engine loads; /ready and the API say 503 with Retry-After until it is there."""
    go = threading.Event()
    app = build(FakeEngine())
    gateway = app.state.gateway
    factory = gateway._factory

    def slow(plan: EnginePlan) -> FakeEngine:
        plan.progress("load", "weights")
        go.wait(5)
        return factory(plan)

    gateway._factory = slow
    web = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server")
    async with LifespanManager(app), web as client:
        assert (await client.get("/health")).status_code == 200
        told = await client.get("/ready")
        assert (told.status_code, told.json()["phase"]) == (503, "loading")
        for path in ("/v1/completions", "/tokenize"):
            refused = await client.post(path, json={"prompt": "Hi"})
            assert refused.status_code == 503 and "loading" in refused.json()["error"]["message"]
            assert int(refused.headers["retry-after"]) > 0
        assert (await client.get("/v1/models")).status_code == 200
        go.set()
        await gateway.loaded()
        assert (await client.get("/ready")).json()["phase"] == "ready"
        assert (await complete(client)).status_code == 200


SCRAPERS = {
    "curl": "*/*",
    "Prometheus 2.42": "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
    "Prometheus 2.55": "application/openmetrics-text;version=1.0.0;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
    "Prometheus 3": "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
    "underscores": "text/plain;version=1.0.0;escaping=underscores",
    "OpenMetrics alone": "application/openmetrics-text; version=1.0.0",
}


async def test_metrics_are_all_there_directly() -> None:
    """No redirect, the version in the type; under a root path too (E03)."""
    for prefix in ("", "/api"):
        async with served(FakeEngine(k=3), root_path=prefix or None) as client:
            for path in ("/metrics", "/metrics/"):
                plain = await client.get(prefix + path)
                assert plain.status_code == 200
                assert plain.headers["content-type"].startswith("text/plain; version=")
                assert "t5gemma_draft_info{" in plain.text


@pytest.mark.parametrize("accept", SCRAPERS.values(), ids=SCRAPERS)
async def test_every_scraper_reads_the_same_names(accept: str) -> None:
    """Prometheus 2's Accept header gave `vllm_...`, which no alert or panel asks for (N17)."""
    counter = Counter("vllm:negotiated", "x", ["model_name"])
    try:
        async with served(FakeEngine(k=3)) as client:
            counter.labels("demo").inc(3)
            plain = await client.get("/metrics", headers={"Accept": ""})
            asked = await client.get("/metrics", headers={"Accept": accept})
            assert asked.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
            names = [line.split("{")[0].split(" ")[0] for line in asked.text.splitlines()]
            assert names == [line.split("{")[0].split(" ")[0] for line in plain.text.splitlines()]
            assert 'vllm:negotiated_total{model_name="demo"} 3.0' in asked.text.splitlines()
            assert "vllm_" not in asked.text
    finally:
        REGISTRY.unregister(counter)


async def test_engine_series_are_untouched() -> None:
    """`vllm:*` series of the default registry appear as they are."""
    counter = Counter("vllm:probe_of_a_test", "x", ["model_name"])
    try:
        async with served(FakeEngine(k=3)) as client:
            counter.labels("demo").inc(3)
            lines = (await client.get("/metrics")).text.splitlines()
            # Engines of other tests in this process may have left series of their own.
            assert [x for x in lines if x.startswith("vllm:probe") and "created" not in x] == [
                'vllm:probe_of_a_test_total{model_name="demo"} 3.0'
            ]
    finally:
        REGISTRY.unregister(counter)


async def test_no_traffic_is_not_a_number() -> None:
    async with served(FakeEngine(k=2)) as client:
        lines = (await client.get("/metrics")).text.splitlines()
        assert 't5gemma_draft_acceptance_rate{k="2",window="lifetime"} NaN' in lines


async def test_two_applications_count_apart() -> None:
    """The instrumentator on a shared registry would count one of them only."""
    async with ready(build(FakeEngine())) as one, ready(build(FakeEngine())) as two:
        for app, times in ((one, 1), (two, 2)):
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://server"
            ) as client:
                for _ in range(times):
                    await client.get("/v1/models")
                text = (await client.get("/metrics")).text
                assert f'handler="/v1/models",method="GET",status="200"}} {times}.0' in text


async def test_dead_engine() -> None:
    """/health 503, requests 503, and the process is told to end."""
    engine = FakeEngine(delay_s=0.05)
    app = build(engine)
    ended = asyncio.Event()
    async with ready(app):
        app.state.gateway.on_end = ended.set
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            engine.dead = True
            reply = await complete(client, max_tokens=100)
            assert reply.status_code == 503
            await asyncio.wait_for(ended.wait(), 3)
            assert (await client.get("/health")).status_code == 503
            assert (await client.get("/ready")).json()["phase"] == "dead"
            assert (await complete(client)).status_code == 503
        app.state.gateway.phase, app.state.gateway.failure = "ready", None  # or the lifespan ends the process
