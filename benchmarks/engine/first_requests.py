"""How long a server takes to be ready, and how much slower the first request of a kind is than the next ones.

    python -m benchmarks.engine.first_requests --out benchmarks/results/h200.json

The demo and a checkpoint pair of published shape with random weights, each started twice: with empty compile caches
and with those that the first start left. Requests are sent one at a time, as soon as the server says that it is ready.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.bench.servers import run_to_end
from app.config.settings import Settings
from benchmarks.engine.checkpoints import write_pair
from benchmarks.engine.served import completion, gateway, logs_folder
from benchmarks.results import record, typed
from plugin.drafts.checkpoint import DEMO

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"max_tokens": 32, "ignore_eos": True},
    "sampled": {
        "max_tokens": 32,
        "ignore_eos": True,
        "temperature": 1.0,
        "top_p": 0.9,
        "top_k": 20,
        "seed": 1,
    },
    "logprobs": {"max_tokens": 32, "ignore_eos": True, "logprobs": 3},
    "structured": {"max_tokens": 32, "structured_outputs": {"regex": "[a-z]{24}"}},
    "penalties": {
        "max_tokens": 32,
        "ignore_eos": True,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.1,
    },
}
LATER = 9
"""Requests of a kind that the first is compared with."""
CACHES = ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
Times = dict[str, list[float]]


async def started(name: str, model: Path, logs: Path) -> tuple[float, Times]:
    """Seconds to be ready, and of the requests of every kind, in the order in which they were sent."""
    settings = {"MODEL": str(model), "DRAFT": "", "VERIFIER": "", "K": ""}
    batch = int(Settings.model_fields["max_num_seqs"].default)
    async with gateway(name, settings, batch, logs) as (client, ready):
        print(f"{name}: ready after {ready:.1f} s", flush=True)
        times = {
            kind: [await completion(client, body) for _ in range(1 + LATER)] for kind, body in KINDS.items()
        }
    for kind, seconds in times.items():
        first, *later = (1e3 * each for each in seconds)
        print(
            f"{name}: {kind:>10} first {first:8.1f} ms, median {statistics.median(later):.1f} ms", flush=True
        )
    return ready, times


def over_median(times: Times) -> float:
    """The largest ratio, over the kinds, of a first request to the median of the later ones."""
    return max(seconds[0] / statistics.median(seconds[1:]) for seconds in times.values())


def figures(ready: Mapping[str, float], times: Mapping[str, Times]) -> dict[str, float]:
    """By name; the keys are a model's, with `_cold` behind it for empty caches."""
    return {
        "first_request_over_median": max(over_median(each) for each in times.values()),
        **{f"ready_s_{name}": seconds for name, seconds in ready.items()},
    }


async def measure(models: Mapping[str, Path], logs: Path) -> tuple[dict[str, float], dict[str, Any]]:
    """The figures and the seconds of all requests."""
    ready: dict[str, float] = {}
    times: dict[str, Times] = {}
    for model, folder in models.items():
        with tempfile.TemporaryDirectory(prefix="compile-caches-") as caches:
            os.environ.update({name: f"{caches}/{name.lower()}" for name in CACHES})
            for name in (f"{model}_cold", model):
                ready[name], times[name] = await started(name, folder, logs)
    return figures(ready, times), {"request_seconds": times}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine.first_requests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", default="demo,1b", help="which of demo and 1b (default %(default)s)")
    parser.add_argument("--out", type=Path, help="record the figures in this results file")
    parser.add_argument("--logs", type=Path, help="folder of the servers' logs")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="published-shape-") as root:
        models = {
            name: DEMO / "dflash" if name == "demo" else write_pair(Path(root))
            for name in args.models.split(",")
        }
        found, details = run_to_end(measure(models, logs_folder(args.logs)))
    for name, value in found.items():
        print(f"{name} = {value:.2f}")
    if args.out:
        record(args.out, typed("benchmarks.engine.first_requests"), found, details)


if __name__ == "__main__":
    main()
