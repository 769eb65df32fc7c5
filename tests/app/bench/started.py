"""`uvicorn tests.app.bench.started:app`: a scripted server that a benchmark starts as if it were the gateway.

It obeys the T5GEMMA_* variables that make an arm: without a draft a chunk takes BASE_MS and brings one token,
with one it takes DRAFT_MS and brings 1 + K // 2. WRONG changes a token of every draft's output, REFUSE is the
beginning of prompts that a draft fails, FAIL ends the process at once, DIE_AFTER after so many requests, FORK leaves a
child behind.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette

from app.bench.arms import Arm
from tests.app.bench.scripted import Script, running

TOKENS = 12


def _make() -> Starlette:
    if os.environ.get("FAIL"):
        raise SystemExit("t5gemma2: no such weights")
    if os.environ.get("FORK"):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        child.start()
        print(f"child {child.pid} concurrency {os.environ['T5GEMMA_MAX_NUM_SEQS']}", flush=True)
    names = ("DRAFT", "K")
    return script_of({name: os.environ[f"T5GEMMA_{name}"] for name in names}).app()


def script_of(settings: Mapping[str, str]) -> Script:
    """The server that an arm's settings mean."""
    alone = settings["DRAFT"] == "none"
    k = 0 if alone else int(settings["K"] or 7)
    per_chunk = 1 + k // 2
    delay = float(os.environ.get("BASE_MS" if alone else "DRAFT_MS", "4")) / 1000
    wrong = bool(os.environ.get("WRONG")) and not alone
    refused = os.environ.get("REFUSE")
    left = itertools.count(int(os.environ.get("DIE_AFTER", "1000000")), -1)

    def refuse(prompt: str) -> str | None:
        if not next(left):
            print("the engine is gone", flush=True)
            os._exit(3)
        return "no" if k and refused and prompt.startswith(refused) else None

    return Script(
        delays_s=lambda number: [delay] * (TOKENS // per_chunk),
        tokens_per_chunk=per_chunk,
        token=lambda prompt, position: len(prompt) + position + (wrong and position == 5),
        k=k,
        accepted=k // 2,
        family=None if alone else "dflash",
        refuse=refuse,
        gap=float(os.environ.get("GAP", "5")),
    )


@asynccontextmanager
async def in_a_thread(arm: Arm, concurrency: int, log: Path, start_timeout_s: float) -> AsyncIterator[str]:
    """`servers.serving` without a process, for tests of what is done with a server."""
    if arm.url is not None:
        yield arm.url
        return
    with running(script_of(dict(arm.settings))) as url:
        yield url


app = _make() if "T5GEMMA_DRAFT" in os.environ else None
