"""What the gateway costs: the same model behind it and behind plain `vllm serve`, side by side on one machine.

    python -m benchmarks.gateway_cost [--model FOLDER] [--runs 5] [--gpu --out benchmarks/results/h200.json]

Every run starts each server afresh and alone, in changing order, with the same dtype, batch size and eager flag: two
that live at once share the cores unevenly, and one start is faster than the next. A turn is 32 streams of 64 tokens,
then 8 requests in one piece; a run's numbers are the medians of its turns, those that warm up not counted. Printed are
the medians of the runs with their spread, and the ratios gateway / vllm serve. A stream without output, with an error
or with another number of tokens ends it, with the end of the servers' logs.

Only idle cores give a ratio: the gateway computes on all of them, and one that another program holds makes the others
wait, where `vllm serve` computes on one core less. What others use is looked at before each start, and said.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np

from app.bench.arms import absolute
from app.bench.client import Sampling, Target, http_client
from app.bench.errors import BenchError
from app.bench.servers import run_to_end, started
from app.config.settings import PREFIX
from benchmarks.results import record, typed
from plugin.drafts.checkpoint import DEMO, Checkpoints, resolve
from plugin.package_environment import package_environment

STREAMS, WHOLE, TOKENS, PROMPT_TOKENS = 32, 8, 64, 24
TURNS, GPU_TURNS = (1, 3), (4, 9)
"""Turns that warm up, and that count; on a GPU they are short, and more of the first ones are slow."""
MODEL = "model"
SAMPLING = Sampling(TOKENS, ignore_eos=True)
LOG_LINES = 30
BUSY = 0.3
"""Cores that others may use; above it the ratios say little."""


class Turn(NamedTuple):
    """Requests a second of the streams and of the whole replies, and the median seconds to the first token."""

    stream_rate: float
    whole_rate: float
    first: float


@dataclass(frozen=True)
class Server:
    """One of the two: Python's arguments, the path that says that it is up, its environment, a `Turn` a run."""

    name: str
    command: tuple[str, ...]
    ready: str
    variables: dict[str, str]
    runs: list[Turn] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    """Cores that others used before each run."""

    def log(self, folder: Path) -> Path:
        return folder / f"{self.name.replace(' ', '-')}.log"


def servers(checkpoints: Checkpoints, batch: int, gpu: bool) -> list[Server]:
    """The gateway and plain vLLM for one pair of checkpoints, without the shell's T5GEMMA_* variables: in float32 and
    eager, or, with `gpu`, in bfloat16 and with CUDA graphs.
    """
    draft = absolute(checkpoints.draft.path) if checkpoints.draft else None
    same = {
        "model": absolute(checkpoints.verifier.path),
        "served_model_name": MODEL,
        "dtype": "bfloat16" if gpu else "float32",
        "max_model_len": "512",
        "max_num_seqs": str(batch),
        "kv_cache_memory_bytes": str(1 << 30),
    }
    settings = same | {"draft": draft or "none", "enforce_eager": str(not gpu), "request_metrics": "none"}
    flags = same | {"max_num_batched_tokens": "2048"}
    if draft is not None:
        speculative = {"model": draft, "method": "dflash", "num_speculative_tokens": checkpoints.k}
        flags["speculative_config"] = json.dumps(speculative)
    clean = {name: v for name, v in package_environment().items() if not name.upper().startswith(PREFIX)}
    stock = [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", value)]
    stock += ["--disable-uvicorn-access-log", *([] if gpu else ["--enforce-eager"])]
    return [
        Server(
            "gateway",
            ("-m", "uvicorn", "app:main", "--no-access-log"),
            "/ready",
            clean | {PREFIX + name.upper(): value for name, value in settings.items()},
        ),
        Server("vllm serve", ("-m", "vllm.entrypoints.openai.api_server", *stock), "/health", clean),
    ]


async def stream(target: Target, prompt: list[int]) -> float:
    """Seconds to the first token of one stream; BenchError unless it holds what was asked for."""
    reply = await target.complete(prompt, SAMPLING)
    if reply.error is not None or not reply.text:
        raise BenchError(f"a stream failed: {reply.error or 'it holds no text'}")
    _check_tokens(reply.tokens)
    assert reply.timing.ttft is not None, "there is text"
    return reply.timing.ttft


async def whole(target: Target, prompt: list[int]) -> None:
    """One request in one piece; BenchError unless it holds what was asked for."""
    reply = await target.whole(prompt, SAMPLING)
    reply.raise_for_status()
    _check_tokens((reply.json().get("usage") or {}).get("completion_tokens"))


def _check_tokens(tokens: int | None) -> None:
    if tokens != TOKENS:
        raise BenchError(f"completion_tokens is {tokens}, asked for were {TOKENS}")


async def turn(url: str) -> Turn:
    """One turn of a running server."""
    async with http_client(url, own=True) as client:
        target = Target(client, MODEL, gives_ids=False)
        began = time.perf_counter()
        times = await asyncio.gather(*[stream(target, _prompt(i)) for i in range(STREAMS)])
        stream_rate = STREAMS / (time.perf_counter() - began)
        began = time.perf_counter()
        await asyncio.gather(*[whole(target, _prompt(i)) for i in range(WHOLE)])
        return Turn(stream_rate, WHOLE / (time.perf_counter() - began), statistics.median(times))


def _prompt(number: int) -> list[int]:
    return [2, *[5 + (number * 7 + i * 3) % 200 for i in range(PROMPT_TOKENS - 1)]]


async def measure(
    both: Sequence[Server], runs: int, folder: Path, start_timeout_s: float, turns: tuple[int, int]
) -> None:
    """`runs` runs of each, in changing order; appends their numbers. `turns`: those that warm up, those that count."""
    warm_up, counted = turns
    for number in range(runs):
        for server in both if number % 2 else reversed(both):
            server.busy.append(await busy_cores())
            async with started(
                server.name,
                server.command,
                server.variables,
                server.ready,
                server.log(folder),
                start_timeout_s,
            ) as url:
                taken = [await turn(url) for _ in range(warm_up + counted)][warm_up:]
            server.runs.append(Turn(*map(statistics.median, zip(*taken, strict=True))))
            print(f"run {number + 1}/{runs}, {server.name}: {taken[-1]}", file=sys.stderr, flush=True)


async def busy_cores(seconds: float = 1.0) -> float:
    """How many of the cores that this process may use are at work, on average over `seconds` from now; 0 where Linux
    does not tell.
    """
    before = _ticks()
    await asyncio.sleep(seconds)
    used = [(new - old).clip(min=0) for old, new in zip(before, _ticks(), strict=True)]
    return float(sum(1 - ticks[_IDLE].sum() / ticks.sum() for ticks in used if ticks.sum()))


_IDLE = [3, 4]
"""Of a core's times in /proc/stat: idle, and idle while a disk works."""


def _ticks() -> list[np.ndarray]:
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    return [
        np.array(line.split()[1:], dtype=float)
        for line in lines
        if line.split()[:1] and line.split()[0] in ours
    ]


def ratios(ours: Server, stock: Server) -> Turn:
    """Median of ours over median of the other's, of each number."""
    mine, other = ((statistics.median(x) for x in zip(*server.runs, strict=True)) for server in (ours, stock))
    return Turn(*(a / b for a, b in zip(mine, other, strict=True)))


def report(ours: Server, stock: Server) -> str:
    """Medians with their spread, and the ratios."""
    lines = [f"{'':34}{ours.name:>24}{stock.name:>24}{'ratio':>8}"]
    numbers: tuple[tuple[str, Callable[[Turn], float], float], ...] = (
        (f"{STREAMS} streams of {TOKENS} tokens, req/s", lambda turn: turn.stream_rate, 1.0),
        ("time to first token, ms", lambda turn: turn.first, 1000.0),
        (f"{WHOLE} whole replies, req/s", lambda turn: turn.whole_rate, 1.0),
    )
    for title, number, scale in numbers:
        columns = ([scale * number(run) for run in server.runs] for server in (ours, stock))
        cells = [f"{statistics.median(v):>10.2f} ({min(v):.2f}-{max(v):.2f})" for v in columns]
        ratio = number(ratios(ours, stock))
        lines.append(f"{title:34}{cells[0]:>24}{cells[1]:>24}{ratio:>8.3f}")
    most = max((*ours.busy, *stock.busy), default=0.0)
    if most > BUSY:
        lines.append(f"NOT to be believed: before a run others used {most:.1f} cores")
    return "\n".join(lines)


def tail(log: Path) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])


def main() -> None:
    """Measures both and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", default=str(DEMO / "dflash"), help="verifier or draft, as T5GEMMA_MODEL")
    add("--batch", type=int, default=32, help="max_num_seqs of both")
    add("--runs", type=int, default=5)
    add("--start-timeout", type=float, default=300.0, metavar="S", help="until a server is ready, seconds")
    add("--gpu", action="store_true", help="bfloat16 and CUDA graphs (default: float32, eager)")
    add("--out", type=Path, help="merge the figures into this JSON file")
    arguments = parser.parse_args()
    both = servers(resolve(arguments.model, None, None, None), arguments.batch, arguments.gpu)
    turns = GPU_TURNS if arguments.gpu else TURNS
    folder = Path(tempfile.mkdtemp(prefix="gateway-cost-"))
    try:
        run_to_end(measure(both, arguments.runs, folder, arguments.start_timeout, turns))
    except (BenchError, httpx.HTTPError) as error:
        for log in (server.log(folder) for server in both):
            if log.exists():
                print(f"--- {log}, its end\n{tail(log)}", file=sys.stderr)
        raise SystemExit(f"{type(error).__name__}: {error}") from None
    print(report(*both))
    print(f"logs: {folder}")
    if arguments.out:
        found = ratios(*both)
        record(
            arguments.out,
            typed("benchmarks.gateway_cost"),
            {"gateway_over_vllm_serve_rps": found.stream_rate, "gateway_over_vllm_serve_ttft": found.first},
            {server.name: [run._asdict() for run in server.runs] for server in both}
            | {"busy_cores_before": {server.name: server.busy for server in both}},
        )


if __name__ == "__main__":
    main()
