"""Requests a second of two engine replicas over those of one: `python -m benchmarks.engine.data_parallel`.

Needs two GPUs. The demo behind the gateway as users start it; 64 requests at once, twice the larger batch.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

import httpx

from app.bench.servers import run_to_end
from benchmarks.engine.figures import Figure, as_json, ratio
from benchmarks.engine.served import completion, gateway, logs_folder
from benchmarks.engine.turns import WARM_UP_ROUNDS, settled
from benchmarks.results import record, typed
from plugin.drafts.checkpoint import DEMO

REQUESTS, BATCH, TOKENS, ROUNDS = 64, 32, 128, 7


async def burst(client: httpx.AsyncClient) -> float:
    """Seconds of `REQUESTS` requests sent at once."""
    began = time.perf_counter()
    await asyncio.gather(
        *[completion(client, {"max_tokens": TOKENS, "ignore_eos": True}) for _ in range(REQUESTS)]
    )
    return time.perf_counter() - began


async def measure(logs: Path) -> tuple[Figure, dict[int, list[float]]]:
    """The ratio, and the seconds of the rounds by number of replicas."""
    seconds: dict[int, list[float]] = {}
    for size in (1, 2):
        settings = {
            "MODEL": str(DEMO / "dflash"),
            "DRAFT": "",
            "VERIFIER": "",
            "K": "",
            "DATA_PARALLEL_SIZE": str(size),
        }
        async with gateway(f"dp{size}", settings, BATCH, logs) as (client, ready):
            warm: list[float] = []
            while len(warm) < WARM_UP_ROUNDS and not settled(warm):
                warm.append(await burst(client))
            seconds[size] = [await burst(client) for _ in range(ROUNDS)]
            print(
                f"dp{size}: ready after {ready:.0f} s, {REQUESTS / min(seconds[size]):.1f} req/s", flush=True
            )
    return ratio(seconds[1], seconds[2]), seconds


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine.data_parallel",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, help="record the figure in this results file")
    parser.add_argument("--logs", type=Path, help="folder of the servers' logs")
    args = parser.parse_args()
    import torch

    if torch.cuda.device_count() < 2:
        print("nothing is measured: data parallelism needs two GPUs")
        return
    found, seconds = run_to_end(measure(logs_folder(args.logs)))
    print(f"dp2_over_dp1_rps = {found.value:.3f}  ({found.low:.3f} ... {found.high:.3f})")
    if args.out:
        details = {"figures": as_json({"dp2_over_dp1_rps": found}), "seconds": seconds}
        record(args.out, typed("benchmarks.engine.data_parallel"), {"dp2_over_dp1_rps": found.value}, details)


if __name__ == "__main__":
    main()
