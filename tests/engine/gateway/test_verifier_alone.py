"""The real gateway with the verifier alone, and its end by a signal."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import httpx
import psutil
import pytest

from tests.engine.gateway.collector import Collector, collector
from tests.engine.gateway.process import GatewayProcess, gateway
from tests.engine.gateway.requests import PROMPT

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def traces() -> Iterator[Collector]:
    with collector() as running:
        yield running


@pytest.fixture(scope="module")
def server(traces: Collector) -> Iterator[GatewayProcess]:
    """The demo without its draft, in JSON lines, with traces."""
    with gateway(
        {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "OTEL_BSP_SCHEDULE_DELAY": "100"},
        otlp_traces_endpoint=traces.url,
        draft="none",
        max_model_len=256,
        log_format="json",
        shutdown_grace_s=20,
    ) as running:
        yield running


def test_no_draft(server: GatewayProcess) -> None:
    """Family null, zeros and no positions; no acceptance in any reply (B23)."""
    assert server.client.get("/drafts").json()["family"] is None
    reply = server.complete(PROMPT, max_tokens=8).json()
    assert "speculative_decoding" not in reply["metrics"] and reply["metrics"]["time_to_first_token_ms"] > 0
    assert "completion_tokens_details" not in reply["usage"]
    stats = server.client.get("/drafts/stats").json()
    assert stats["family"] is stats["k"] is None and stats["lifetime"]["drafts"] == 0


def test_fields_that_a_draft_forbids(server: GatewayProcess) -> None:
    """Fields that a draft rules out are served without one, with their effect (A32)."""
    ids = {"return_token_ids": True, "max_tokens": 4, "ignore_eos": True}
    forced = server.complete(PROMPT, logit_bias={"300": 100}, **ids).json()["choices"][0]
    assert forced["token_ids"] == [300] * 4
    assert server.complete(PROMPT, temperature=0.5, min_p=0.2, **ids).status_code == 200
    named = server.complete(PROMPT, logprobs=2, logprob_token_ids=[5, 6], **ids)
    assert named.status_code == 200, named.text
    assert all(2 <= len(top) <= 3 for top in named.json()["choices"][0]["logprobs"]["top_logprobs"])


def test_vllms_span_is_a_child_of_the_requests(server: GatewayProcess, traces: Collector) -> None:
    """Client, gateway and vLLM in one trace, from one service."""
    trace, caller = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    headers = {"traceparent": f"00-{trace}-{caller}-01"}
    reply = server.client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 8}, headers=headers)
    assert reply.status_code == 200
    service, ours = traces.wait_for("POST /v1/completions", trace)
    vllms_service, vllms = traces.wait_for("llm_request", trace)
    assert service == vllms_service == "t5gemma2"
    assert ours.parent_span_id.hex() == caller and vllms.parent_span_id == ours.span_id
    parts = [traces.wait_for(name, trace)[1] for name in ("queue", "encode", "decode")]
    assert {part.parent_span_id for part in parts} == {ours.span_id}
    times = [ours.start_time_unix_nano, *(part.start_time_unix_nano for part in parts)]
    assert times == sorted(times) and parts[-1].end_time_unix_nano <= ours.end_time_unix_nano
    assert "Overriding of current TracerProvider" not in server.log()


def test_stages_are_logged(server: GatewayProcess) -> None:
    """Progress that a person, or a collector, can follow."""
    lines = [json.loads(line) for line in server.log().splitlines() if line.startswith('{"time"')]
    said = " ".join(line["message"] for line in lines if line["logger"] == "app.gateway")
    places = [said.index(stage) for stage in ("] download:", "] import:", "] load:", "] ready:")]
    assert places == sorted(places)


def test_signal(server: GatewayProcess) -> None:
    """The running stream ends by itself within the grace time, nothing is left (E10); this server's last test."""
    children = psutil.Process(server.process.pid).children(recursive=True)
    body = {"prompt": PROMPT, "max_tokens": 200, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=30) as reply:
        parts = reply.iter_text()
        next(parts)
        server.process.send_signal(signal.SIGTERM)
        text = "".join(parts)
    assert '"finish_reason":"length"' in text and text.endswith("data: [DONE]\n\n")
    assert server.process.wait(40) in (0, -signal.SIGTERM)
    _, left = psutil.wait_procs(children, timeout=10)
    assert not left
