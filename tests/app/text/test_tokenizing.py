"""Texts that are being tokenized: the short do not wait for the long, and nobody's is not tokenized to its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from app.text.cancellation import check
from tests.app.asgi_client import Connection
from tests.app.conftest import build, complete, ready, served
from tests.app.fake_engine import FakeEngine, FakeTokenizer

pytestmark = pytest.mark.anyio

LONG = "x" * 20_000
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/tokenize", {"prompt": LONG}),
    ("/v1/completions", {"prompt": LONG, "truncate_prompt_tokens": 9}),
    ("/v1/completions", {"prompt": [LONG[:2000]] * 10, "truncate_prompt_tokens": 9}),
]


class Slow(FakeTokenizer):
    """A long text is worked on until nobody waits for it, ten seconds at most."""

    def __init__(self) -> None:
        self.begun = self.running = 0

    def encode(self, text: str, add_special_tokens: bool, enough: int | None = None) -> list[int]:
        if len(text) >= 2000:
            self.begun += 1
            self.running += 1
            try:
                for _ in range(1000):
                    check()
                    time.sleep(0.01)
            finally:
                self.running -= 1
        return super().encode(text[:9], add_special_tokens, enough)


def slow() -> tuple[FakeEngine, Slow]:
    engine = FakeEngine()
    engine.tokenizer = tokenizer = Slow()
    return engine, tokenizer


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  (threads tell nothing)
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_a_client_that_left(path: str, body: dict[str, Any]) -> None:
    """What was begun ends soon, what was not never begins, and room is made for others."""
    engine, tokenizer = slow()
    async with ready(build(engine)) as app:
        admission = app.state.gateway.admission
        connections = [Connection(app, body, path) for _ in range(4)]
        each = len(body["prompt"]) if isinstance(body["prompt"], list) else 1
        await until(lambda: tokenizer.running == 2 and admission.in_flight == 4 * each)
        for connection in connections:
            await connection.leave()
        await until(lambda: tokenizer.running == 0)
        await asyncio.sleep(0.05)
        assert tokenizer.begun <= 10 and not tokenizer.running and admission.in_flight == 0


async def test_short_texts_go_before() -> None:
    """However many long ones there are."""
    engine, tokenizer = slow()
    async with ready(build(engine)) as app:
        connections = [Connection(app, {"prompt": LONG}, "/tokenize") for _ in range(3)]
        await until(lambda: tokenizer.running == 2)
        short = [Connection(app, {"prompt": "Hi"}, "/tokenize"), Connection(app, {"prompt": "Hi", "n": 2})]
        short.append(Connection(app, {"tokens": [70, 71]}, "/detokenize"))
        for connection in short:
            await connection.end()
            assert connection.status == 200
        assert tokenizer.running == 2
        for connection in connections:
            await connection.leave()


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_deadline(path: str, body: dict[str, Any]) -> None:
    engine, tokenizer = slow()
    async with served(engine, request_timeout_s=0.3) as client:
        reply = await client.post(path, json=body)
        assert (reply.status_code, reply.json()["error"]["type"]) == (504, "GatewayTimeoutError")
        await until(lambda: tokenizer.running == 0)


async def test_the_end_of_the_server() -> None:
    """Texts are given up at the end of the grace time, as completions are."""
    engine, tokenizer = slow()
    app = build(engine, shutdown_grace_s=0.1)
    async with ready(app):
        connection = Connection(app, {"prompt": LONG}, "/tokenize")
        await until(lambda: tokenizer.running == 1)
        app.state.gateway.drain()
        await connection.end()
        assert connection.status == 503
        await until(lambda: tokenizer.running == 0)


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_queue_is_full(path: str) -> None:
    async with served(FakeEngine(hold=asyncio.Event()), max_num_seqs=1, max_queued_requests=0) as client:
        waiting = asyncio.create_task(complete(client))
        body = {"prompt": "Hi", "tokens": [70]}
        await asyncio.sleep(0.05)
        reply = await client.post(path, json=body)
        assert reply.status_code == 503 and "retry-after" in reply.headers
        waiting.cancel()
