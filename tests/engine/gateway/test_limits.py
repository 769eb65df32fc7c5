"""What is refused, and that the engine lives on."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.engine.gateway.process import GatewayProcess
from tests.engine.gateway.requests import PROMPT

pytestmark = pytest.mark.engine


def test_empty_prompts(server: GatewayProcess) -> None:
    """An empty prompt in any form is refused before the engine, which lives on (A01)."""
    for prompt in ("", [], [[]], [""], None):
        error = server.complete(prompt, max_tokens=4).json()["error"]
        assert (error["code"], error["param"]) == (400, "prompt")
    assert server.client.get("/health").status_code == 200
    assert server.text(PROMPT, max_tokens=8)


def test_ids_outside_the_vocabulary(server: GatewayProcess) -> None:
    """Prompt ids outside the model config's vocabulary are a 400; its last id is served (A31)."""
    size = server.client.get("/drafts").json()["verifier"]["vocab_size"]
    for prompt in ([2, 999999999], [2, size], [-1], [9223372036854775808], [2.5], [True]):
        error = server.complete(prompt, max_tokens=2).json()["error"]
        assert (error["code"], error["param"]) == (400, "prompt")
    assert server.complete([2, size - 1], max_tokens=2).status_code == 200
    assert server.client.get("/health").status_code == 200


def test_refusals_beside_a_draft(server: GatewayProcess) -> None:
    """Fields that cannot be served, some only beside a draft, are a 400, never dropped silently (A32, A33)."""
    for name, value in (
        ("logit_bias", {"99999999": 5}),
        ("logit_bias", {"5": 1}),
        ("min_p", 0.1),
        ("stop_token_ids", [99999999]),
        ("allowed_token_ids", [99999999]),
        ("allowed_token_ids", []),
    ):
        error = server.complete(PROMPT, max_tokens=2, **{name: value}).json()["error"]
        assert (error["code"], error["param"]) == (400, name)
    assert server.text(PROMPT, max_tokens=8)


def test_budgets(server: GatewayProcess) -> None:
    """Encoder and decoder have separate budgets, the same in /v1/models, in errors and in results (C08, C10)."""
    listed = server.client.get("/v1/models").json()["data"][0]
    assert (listed["id"], listed["max_model_len"], listed["max_encoder_len"]) == ("demo", 256, 64)
    for length in (63, 64):
        assert server.complete([5] * length, max_tokens=2).status_code == 200
    for length in (65, 128):
        error = server.complete([5] * length, max_tokens=2).json()["error"]
        assert error["code"] == 400 and str(length) in error["message"] and "64" in error["message"]
    for length, limit, count in ((60, 40, 40), (10, 255, 255), (10, 256, 255)):
        reply = server.complete([5] * length, max_tokens=limit, ignore_eos=True).json()
        assert reply["usage"]["completion_tokens"] == count
        assert reply["choices"][0]["finish_reason"] == "length"
    assert server.metric("vllm:num_requests_waiting") == 0


def test_health_stays_quick(server: GatewayProcess) -> None:
    """Fifty megabyte prompts at once are refused while /health answers within a second (E15)."""
    big = "x" * 1_000_000
    slowest = 0.0
    with ThreadPoolExecutor(50) as pool:
        jobs = [pool.submit(server.complete, big, max_tokens=1) for _ in range(50)]
        while not all(job.done() for job in jobs):
            began = time.monotonic()
            assert httpx.get(server.url + "/health", timeout=10).status_code == 200
            slowest = max(slowest, time.monotonic() - began)
            time.sleep(0.1)
    assert {job.result().status_code for job in jobs} == {400}
    assert slowest < 1
    huge = server.client.post(
        "/v1/completions", content=b" " * (20 << 20), headers={"Content-Type": "application/json"}
    )
    assert huge.status_code == 413
