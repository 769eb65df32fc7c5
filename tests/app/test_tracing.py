"""A span for every completion: what it tells, whose child it is, and that nothing of it is there when it is off."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager
from itertools import pairwise

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from app import tracing
from app.config.settings import SettingsError
from tests.app.asgi_client import Connection
from tests.app.completions.test_lifetime import until
from tests.app.conftest import build, complete, ready
from tests.app.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = f"{PARENT[:-1]}0"


@pytest.fixture
def exported(monkeypatch) -> InMemorySpanExporter:
    """What a collector would get, of applications with an endpoint."""
    found = InMemorySpanExporter()
    monkeypatch.setattr(tracing, "exporter", lambda endpoint: found)
    monkeypatch.setattr(tracing.trace, "set_tracer_provider", lambda provider: None)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "here")
    return found


@asynccontextmanager
async def traced(engine: FakeEngine, **settings):
    app = build(engine, otlp_traces_endpoint="http://collector:4317", **settings)
    transport = httpx.ASGITransport(app)
    async with ready(app), httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        yield client, app
        app.state.spans.force_flush()


def request_span(exported: InMemorySpanExporter):
    (found,) = [span for span in exported.get_finished_spans() if span.kind is SpanKind.SERVER]
    return found


async def test_what_a_request_tells(exported):
    engine = FakeEngine(k=3, per_step=3)
    async with traced(engine) as (client, _):
        reply = await client.post(
            "/v1/completions",
            json={"prompt": "Hi", "model": "demo", "max_tokens": 7, "temperature": 0.5, "seed": 3},
            headers={"traceparent": PARENT},
        )
    span = request_span(exported)
    assert span.name == "POST /v1/completions" and span.resource.attributes["service.name"] == "here"
    assert f"{span.context.trace_id:032x}" == PARENT[3:35] and f"{span.parent.span_id:016x}" == PARENT[36:52]
    assert reply.headers["traceresponse"] == f"00-{PARENT[3:35]}-{span.context.span_id:016x}-01"
    assert engine.seen[0].trace_headers == {"traceparent": reply.headers["traceresponse"]}
    body = reply.json()
    told = dict(span.attributes)
    assert told == {
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "url.path": "/v1/completions",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "t5gemma2",
        "gen_ai.request.model": "demo",
        "gen_ai.request.stream": False,
        "gen_ai.request.choice.count": 1,
        "gen_ai.request.max_tokens": 7,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 0,
        "gen_ai.request.seed": 3,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.response.id": body["id"],
        "gen_ai.response.model": "demo",
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": body["usage"]["prompt_tokens"],
        "gen_ai.usage.output_tokens": 7,
        "t5gemma2.draft.k": 3,
        "t5gemma2.draft.steps": body["metrics"]["speculative_decoding"]["num_spec_steps"],
        "t5gemma2.draft.tokens": body["metrics"]["speculative_decoding"]["num_draft_tokens"],
        "t5gemma2.draft.accepted_tokens": body["metrics"]["speculative_decoding"][
            "num_accepted_draft_tokens"
        ],
        "t5gemma2.draft.acceptance_rate": body["metrics"]["speculative_decoding"]["draft_acceptance_rate"],
        "t5gemma2.draft.mean_acceptance_length": body["metrics"]["speculative_decoding"][
            "mean_acceptance_length"
        ],
    }
    assert span.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize("stream", [False, True])
async def test_where_the_time_went(exported, stream):
    """The engine's durations, one after the other; of each prompt."""
    async with traced(FakeEngine()) as (client, _):
        assert (await complete(client, ["Hi", "Ho"], stream=stream)).status_code == 200
    span = request_span(exported)
    children = [one for one in exported.get_finished_spans() if one is not span]
    assert all(one.parent.span_id == span.context.span_id for one in children)
    for prompt in (0, 1):
        parts = [one for one in children if one.attributes["t5gemma2.prompt"] == prompt]
        parts.sort(key=lambda one: one.start_time)
        lasted = {one.name: one.end_time - one.start_time for one in parts}
        assert lasted == {"queue": 1_000_000, "encode": 2_000_000, "decode": 10_000_000}
        assert [a.end_time - b.start_time for a, b in pairwise(parts)] == [0, 0]
        first = next(one for one in span.events if one.attributes["t5gemma2.prompt"] == prompt)
        assert first.name == "first token" and first.timestamp == parts[2].start_time


@pytest.mark.parametrize(
    ("fields", "settings", "status"),
    [({"max_tokens": -1}, {}, 400), ({}, {"api_keys": "key"}, 401), ({"prompt": "x" * 2000}, {}, 400)],
)
async def test_refusals_are_told_and_are_the_callers(exported, fields, settings, status):
    async with traced(FakeEngine(), **settings) as (client, _):
        assert (await complete(client, **fields)).status_code == status
    span = request_span(exported)
    assert span.attributes["http.response.status_code"] == status
    assert span.attributes["error.type"] == str(status) and span.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize("stream", [False, True])
async def test_failures_are_told_without_their_words(exported, stream):
    engine = FakeEngine(fail_after=2, failure=RuntimeError("a prompt"), k=2, per_step=2)
    async with traced(engine) as (client, _):
        await complete(client, stream=stream)
    span = request_span(exported)
    assert span.attributes["http.response.status_code"] == 500 and span.status.status_code is StatusCode.ERROR
    assert span.attributes["gen_ai.usage.output_tokens"] == (4 if stream else 0)
    assert "a prompt" not in span.to_json()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves(exported, stream):
    engine = FakeEngine(delay_s=0.001) if stream else FakeEngine(hold=asyncio.Event())
    async with traced(engine) as (_, app):
        connection = Connection(app, {"prompt": "Hi", "stream": stream, "max_tokens": 300})
        if stream:
            await connection.body_parts(2)
        else:
            await until(lambda: bool(engine.running))
        await connection.leave()
    span = request_span(exported)
    assert span.attributes["http.response.status_code"] == 499 and span.attributes["error.type"] == "499"


async def test_an_unsampled_caller_is_followed(exported):
    """Nothing is exported, and the engine is told the same."""
    engine = FakeEngine()
    async with traced(engine) as (client, _):
        reply = await client.post(
            "/v1/completions", json={"prompt": "Hi"}, headers={"traceparent": UNSAMPLED}
        )
    assert reply.status_code == 200 and exported.get_finished_spans() == ()
    assert engine.seen[0].trace_headers["traceparent"].endswith("-00")


async def test_other_routes_have_none(exported):
    async with traced(FakeEngine()) as (client, _):
        for path in ("/health", "/metrics", "/v1/models"):
            assert "traceresponse" not in (await client.get(path)).headers
        # Any word may be a method: no name of a span may come from it.
        assert "traceresponse" not in (await client.request("FOO", "/v1/completions")).headers
    assert exported.get_finished_spans() == ()


async def test_off_by_default():
    engine = FakeEngine()
    app = build(engine)
    async with (
        ready(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://s") as client,
    ):
        reply = await client.post("/v1/completions", json={"prompt": "Hi"}, headers={"traceparent": PARENT})
    assert "traceresponse" not in reply.headers and engine.seen[0].trace_headers is None


def test_nothing_is_imported_when_it_is_off():
    code = """
import asyncio, sys
from tests.app.conftest import complete, served

async def main():
    async with served() as client:
        assert (await complete(client)).status_code == 200

asyncio.run(main())
assert not [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr


def test_without_the_library_the_start_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.delitem(sys.modules, "app.tracing")
    monkeypatch.delattr("app.tracing")
    with pytest.raises(SettingsError, match="T5GEMMA_OTLP_TRACES_ENDPOINT needs OpenTelemetry"):
        build(FakeEngine(), otlp_traces_endpoint="http://collector:4317")


def test_protocols(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    assert type(tracing.exporter("http://collector:4318/v1/traces")).__module__.endswith(
        "http.trace_exporter"
    )
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json")
    with pytest.raises(SettingsError, match="http/json: use grpc or http/protobuf"):
        tracing.exporter("http://collector:4318/v1/traces")


def test_a_collector_that_is_gone_does_not_hold_up_the_end(monkeypatch):
    monkeypatch.setattr(tracing, "FLUSH_S", 0.05)
    provider, held = TracerProvider(shutdown_on_exit=False), threading.Event()
    monkeypatch.setattr(provider, "shutdown", held.wait)
    began = time.monotonic()
    tracing.close(provider)
    assert time.monotonic() - began < 1
    held.set()
