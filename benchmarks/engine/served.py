"""A gateway that a benchmark starts, and requests to it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from app.bench.arms import Arm
from app.bench.errors import BenchError
from app.bench.servers import serving

START_S = 420.0
PROMPT = "Tom has 12 apples and buys 30 more, then gives 7 away. How many apples are left?"


def logs_folder(asked: Path | None) -> Path:
    """The folder for logs, made if need be; a new one without a wish."""
    folder = asked.resolve() if asked else Path(tempfile.mkdtemp(prefix="benchmark-logs-"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@asynccontextmanager
async def gateway(
    name: str, settings: Mapping[str, str], concurrency: int, logs: Path
) -> AsyncIterator[tuple[httpx.AsyncClient, float]]:
    """A client of a gateway with these settings (T5GEMMA_* without the prefix), and the seconds that it took to be
    ready. `logs` is the absolute folder in which it runs and logs. Raises `BenchError` when it does not become ready.
    """
    arm = Arm(name, settings=tuple(sorted(settings.items())))
    began = time.perf_counter()
    async with serving(arm, concurrency, logs / f"{arm.slug}.log", START_S) as url:
        ready = time.perf_counter() - began
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=180, trust_env=False, limits=limits) as client:
            yield client, ready


async def completion(client: httpx.AsyncClient, body: Mapping[str, Any]) -> float:
    """Wall seconds of one completion; BenchError unless it is one."""
    began = time.perf_counter()
    reply = await client.post("/v1/completions", json={"prompt": PROMPT, "temperature": 0, **body})
    if reply.status_code != httpx.codes.OK:
        raise BenchError(f"{dict(body)}: {reply.status_code} {reply.text[:300]}")
    return time.perf_counter() - began
