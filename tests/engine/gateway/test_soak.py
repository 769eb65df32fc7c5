"""A short soak of this package's server; `make soak` sends ten thousand."""

from __future__ import annotations

import asyncio

import pytest

from app.bench.client import http_client
from benchmarks.soak.run import Soaked, run
from tests.engine.gateway.process import GatewayProcess

pytestmark = pytest.mark.engine

REQUESTS, PROMPTS, AT_ONCE = 200, 3, 8


def test_a_short_soak(server: GatewayProcess) -> None:
    """Mixed requests at a changing K, clients that leave: each answer is the one that it has alone, all numbers add
    up, and the engine is idle and empty at the end. So few requests say nothing of memory.
    """

    async def soaked() -> Soaked:
        async with http_client(server.url, own=True) as client:
            return await run(client, REQUESTS, PROMPTS, AT_ONCE, seed=1)

    found = asyncio.run(soaked())
    assert not found.seen.faults, found.seen.faults
    assert all(check.right for check in found.checks), [c.words for c in found.checks if not c.right]
    assert sum(found.seen.kinds.values()) == REQUESTS and found.seen.tokens > 1_000
    assert "Traceback" not in server.log()
