"""The reckoning of a soak: one number that does not fit is found, and told by name."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import httpx
import pytest

from benchmarks.soak.books import Books, idle, reckoning
from benchmarks.soak.load import Seen

COMPLETIONS = "/v1/completions"
SEEN = Seen(
    replies=Counter({(COMPLETIONS, 200): 8, (COMPLETIONS, 400): 2, ("/tokenize", 200): 1}),
    left=Counter({COMPLETIONS: 3}),
    sequences=10,
    stopped_sequences=1,
    left_sequences=3,
    left_tokens=30,
    tokens=100,
    accepted=50,
)
"""K is 1 at most: one token behind an end, six behind a stop string."""
AFTER = {
    't5gemma_http_requests_total{handler="/v1/completions",status="200"}': 19.0,
    't5gemma_http_requests_total{handler="/v1/completions",status="400"}': 2.0,
    't5gemma_http_requests_total{handler="/v1/completions",status="499"}': 2.0,
    't5gemma_http_requests_total{handler="/tokenize",status="200"}': 1.0,
    't5gemma_http_requests_total{handler="/metrics",status="200"}': 77.0,
    'vllm:generation_tokens_total{engine="0"}': 136.0,
    "t5gemma_encoder_cache_hits_total": 6.0,
    "t5gemma_encoder_cache_misses_total": 7.0,
    "vllm:spec_decode_num_drafts_total": 60.0,
    "vllm:spec_decode_num_draft_tokens_total": 120.0,
    "vllm:spec_decode_num_accepted_tokens_total": 99.0,
    't5gemma_drafts_total{k="1"}': 60.0,
    't5gemma_draft_tokens_total{k="1"}': 120.0,
    't5gemma_accepted_tokens_total{k="1"}': 99.0,
    "vllm:num_requests_running": 0.0,
    "t5gemma_encoder_cache_requests": 0.0,
}
BEFORE = {'t5gemma_http_requests_total{handler="/v1/completions",status="200"}': 10.0}
STATS = {"by_k": [{"lifetime": {"drafts": 60, "draft_tokens": 120, "accepted_tokens": 99}}]}


def books(samples: dict[str, float], stats: dict[str, Any] = STATS) -> Books:
    text = "".join(f"{name} {value}\n" for name, value in samples.items())

    def answer(request: httpx.Request) -> httpx.Response:
        return (
            httpx.Response(200, text=text)
            if request.url.path == "/metrics"
            else httpx.Response(200, json=stats)
        )

    async def read() -> Books:
        async with httpx.AsyncClient(
            transport=httpx.MockTransport(answer), base_url="http://server"
        ) as client:
            return await Books.read(client)

    return asyncio.run(read())


def wrong(after: Books, seen: Seen = SEEN) -> list[str]:
    return [check.words for check in reckoning(books(BEFORE), after, seen, 1) if not check.right]


def test_numbers_that_fit() -> None:
    """Of three clients that left, one had its whole answer before it was seen to be gone."""
    assert wrong(books(AFTER)) == []


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (
            't5gemma_http_requests_total{handler="/v1/completions",status="200"}',
            17.0,
            "/v1/completions 200: 7",
        ),
        (
            't5gemma_http_requests_total{handler="/v1/completions",status="400"}',
            3.0,
            "/v1/completions 400: 3",
        ),
        (
            't5gemma_http_requests_total{handler="/v1/completions",status="500"}',
            1.0,
            "/v1/completions 500: 1",
        ),
        ('vllm:generation_tokens_total{engine="0"}', 99.0, "tokens generated: 99"),
        ('vllm:generation_tokens_total{engine="0"}', 137.0, "tokens generated: 137"),
        ("t5gemma_encoder_cache_hits_total", 2.0, "sequences encoded: 9"),
        ("vllm:spec_decode_num_drafts_total", 61.0, "/drafts/stats drafts: 60"),
        ('t5gemma_accepted_tokens_total{k="1"}', 98.0, "t5gemma_accepted_tokens_total: 98"),
        ("vllm:num_requests_running", 1.0, "vllm:num_requests_running at the end: 1"),
        ("t5gemma_encoder_cache_requests", 2.0, "t5gemma_encoder_cache_requests at the end: 2"),
    ],
)
def test_one_number_that_does_not_fit(name: str, value: float, words: str) -> None:
    found = wrong(books({**AFTER, name: value}))
    assert any(line.startswith(f"{words}, must be") for line in found), found


def test_lost_requests_are_told() -> None:
    assert wrong(books(AFTER), Seen(lost=2, wrong=1))[:2] == [
        "requests lost: 2, must be 0 ... 0",
        "replies that differ: 1, must be 0 ... 0",
    ]


def test_idle_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until nothing runs and the counters stand; not for ever."""
    monkeypatch.setattr("benchmarks.soak.books.POLL_S", 0.001)
    reads = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal reads
        if request.url.path != "/metrics":
            return httpx.Response(200, json={})
        reads += 1
        text = f"vllm:num_requests_running {max(0, 3 - reads)}\nvllm:steps {min(reads, 6)}\n"
        return httpx.Response(200, text=text)

    async def last() -> Books:
        async with httpx.AsyncClient(
            transport=httpx.MockTransport(answer), base_url="http://server"
        ) as client:
            return await idle(client)

    assert asyncio.run(last()).sum("vllm:steps") == 6 and reads == 7
    monkeypatch.setattr("benchmarks.soak.books.IDLE_S", 0.02)
    reads = -(10**6)
    assert asyncio.run(last()).sum("vllm:num_requests_running") > 0
