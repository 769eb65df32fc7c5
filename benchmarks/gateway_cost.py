"""What the gateway costs: the same model behind it and behind plain `vllm serve`, side by side on one machine.

    python -m benchmarks.gateway_cost [--model FOLDER] [--runs 5]

Every run starts each server afresh and alone, in changing order, with the same dtype, batch size and eager flag: two
that live at once share the cores unevenly, and one start is faster than the next. A turn is 32 streams of 64 tokens,
then 8 requests in one piece; a run's numbers are the medians of its turns, the first not counted. Printed are the
medians of the runs with their spread, and the ratios gateway / vllm serve. A stream without output, with an error or
with another number of tokens ends it, with the end of the servers' logs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from app.bench.arms import absolute
from app.bench.servers import free_port
from app.settings import PREFIX
from plugin.drafts.checkpoint import DEMO, Checkpoints, resolve

STREAMS, WHOLE, TOKENS, PROMPT_TOKENS = 32, 8, 64, 24
TURNS = 3
START_S = 300.0
LOG_LINES = 30
ROOT = Path(__file__).resolve().parents[1]


class BadReply(RuntimeError):
    """A server answered something that must not be measured."""


@dataclass
class Server:
    """One of the two; the lists hold a run each, as in `Turn`."""

    name: str
    command: Sequence[str]
    port: int
    env: dict[str, str] = field(default_factory=dict)
    stream_rates: list[float] = field(default_factory=list)
    whole_rates: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)

    def start(self, folder: Path) -> subprocess.Popen[bytes]:
        """Starts it in `folder`, where its log goes and no `.env` lies, without the shell's T5GEMMA_* variables."""
        clean = {name: value for name, value in os.environ.items() if not name.upper().startswith(PREFIX)}
        with self.log(folder).open("wb") as out:
            return subprocess.Popen(
                self.command, env={**clean, **self.env}, cwd=folder, stdout=out, stderr=subprocess.STDOUT
            )

    def log(self, folder: Path) -> Path:
        return folder / f"{self.name.replace(' ', '-')}.log"


def servers(checkpoints: Checkpoints, batch: int) -> list[Server]:
    """The gateway and plain vLLM for one pair of checkpoints."""
    ports = [free_port(), free_port()]
    draft = checkpoints.draft
    verifier_path, draft_path = (
        absolute(checkpoints.verifier.path),
        absolute(draft.path) if draft else "none",
    )
    settings = {
        "T5GEMMA_MODEL": verifier_path,
        "T5GEMMA_DRAFT": draft_path,
        "T5GEMMA_MAX_MODEL_LEN": "512",
        "T5GEMMA_MAX_NUM_SEQS": str(batch),
        "T5GEMMA_KV_CACHE_MEMORY_BYTES": str(1 << 30),
        "T5GEMMA_SERVED_MODEL_NAME": "model",
        "T5GEMMA_DTYPE": "float32",
        "T5GEMMA_ENFORCE_EAGER": "true",
        "T5GEMMA_REQUEST_METRICS": "none",
    }
    stock = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", verifier_path]
    stock += [
        "--served-model-name",
        "model",
        "--dtype",
        "float32",
        "--max-model-len",
        "512",
        "--enforce-eager",
    ]
    stock += ["--max-num-seqs", str(batch), "--kv-cache-memory-bytes", str(1 << 30), "--port", str(ports[1])]
    stock += ["--max-num-batched-tokens", "2048"]
    if draft is not None:
        speculative = {
            "model": draft_path,
            "method": "dflash",
            "num_speculative_tokens": checkpoints.k,
        }
        stock += ["--speculative-config", json.dumps(speculative)]
    ours = [sys.executable, "-m", "uvicorn", "app:main", "--app-dir", str(ROOT), "--no-access-log"]
    ours += ["--port", str(ports[0])]
    return [
        Server("gateway", ours, ports[0], settings),
        Server("vllm serve", [*stock, "--disable-uvicorn-access-log"], ports[1]),
    ]


async def stream(client: httpx.AsyncClient, body: dict[str, Any]) -> float:
    """Seconds to the first event of one stream; BadReply unless it says what was asked for."""
    began = time.perf_counter()
    first = 0.0
    lines: list[str] = []
    options = {"stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", "/v1/completions", json={**body, **options}) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if line.startswith("data: "):
                first = first or time.perf_counter() - began
                lines.append(line.removeprefix("data: "))
    if not lines or lines.pop() != "[DONE]":
        raise BadReply("a stream did not end with [DONE]")
    events = [json.loads(line) for line in lines]
    for event in events:
        if "error" in event:
            raise BadReply(f"a stream holds an error: {event['error']}")
    if not any(choice["text"] for event in events for choice in event["choices"]):
        raise BadReply("a stream holds no text")
    _check_tokens(events[-1])
    return first


async def whole(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    """One request in one piece; BadReply unless it says what was asked for."""
    reply = await client.post("/v1/completions", json=body)
    reply.raise_for_status()
    _check_tokens(reply.json())


def _check_tokens(answer: dict[str, Any]) -> None:
    tokens = (answer.get("usage") or {}).get("completion_tokens")
    if tokens != TOKENS:
        raise BadReply(f"completion_tokens is {tokens}, asked for were {TOKENS}")


@dataclass(frozen=True)
class Turn:
    """Requests a second of the streams and of the whole replies, and the median seconds to the first token."""

    stream_rate: float
    whole_rate: float
    first: float


async def turn(server: Server) -> Turn:
    """One turn of a running server."""
    limits = httpx.Limits(max_connections=STREAMS, max_keepalive_connections=STREAMS)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{server.port}", timeout=600, limits=limits
    ) as client:
        began = time.perf_counter()
        times = await asyncio.gather(*[stream(client, _body(i)) for i in range(STREAMS)])
        stream_rate = STREAMS / (time.perf_counter() - began)
        began = time.perf_counter()
        await asyncio.gather(*[whole(client, _body(i)) for i in range(WHOLE)])
        return Turn(stream_rate, WHOLE / (time.perf_counter() - began), statistics.median(times))


def _body(number: int) -> dict[str, Any]:
    prompt = [2, *[5 + (number * 7 + i * 3) % 200 for i in range(PROMPT_TOKENS - 1)]]
    return {"model": "model", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}


def _wait(server: Server, process: subprocess.Popen[bytes]) -> None:
    path = "/ready" if server.name == "gateway" else "/health"
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BadReply(f"{server.name} ended with exit code {process.returncode}")
        try:
            if httpx.get(f"http://127.0.0.1:{server.port}{path}", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise BadReply(f"{server.name} was not ready after {START_S:g} s")


def report(ours: Server, stock: Server) -> str:
    """Medians with their spread, and the ratios."""
    lines = [f"{'':34}{ours.name:>24}{stock.name:>24}{'ratio':>8}"]
    for title, name, scale in (
        (f"{STREAMS} streams of {TOKENS} tokens, req/s", "stream_rates", 1.0),
        ("time to first token, ms", "first", 1000.0),
        (f"{WHOLE} whole replies, req/s", "whole_rates", 1.0),
    ):
        mine, other = ([scale * x for x in getattr(server, name)] for server in (ours, stock))
        cells = "".join(
            f"{statistics.median(v):>10.2f} ({min(v):.2f}-{max(v):.2f})".rjust(24) for v in (mine, other)
        )
        lines.append(f"{title:34}{cells}{statistics.median(mine) / statistics.median(other):>8.3f}")
    return "\n".join(lines)


def main() -> None:
    """Measures both and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=str(DEMO / "dflash"), help="verifier or draft, as T5GEMMA_MODEL")
    parser.add_argument("--batch", type=int, default=32, help="max_num_seqs of both")
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    both = servers(resolve(arguments.model, None, None, None), arguments.batch)
    folder = Path(tempfile.mkdtemp(prefix="gateway-cost-"))
    try:
        measure(both, arguments.runs, folder)
    except (BadReply, httpx.HTTPError) as error:
        for server in both:
            if server.log(folder).exists():
                print(f"--- {server.log(folder)}, its end", file=sys.stderr)
                print(tail(server.log(folder)), file=sys.stderr)
        raise SystemExit(f"{type(error).__name__}: {error}") from None
    print(report(*both))
    print(f"logs: {folder}")


def measure(both: Sequence[Server], runs: int, folder: Path) -> None:
    """`runs` runs of each, in changing order; appends their numbers."""
    for number in range(runs):
        for server in both if number % 2 else reversed(both):
            process = server.start(folder)
            try:
                _wait(server, process)
                _, *turns = [asyncio.run(turn(server)) for _ in range(1 + TURNS)]
            finally:
                process.terminate()
                process.wait(60)
            server.stream_rates.append(statistics.median(one.stream_rate for one in turns))
            server.whole_rates.append(statistics.median(one.whole_rate for one in turns))
            server.first.append(statistics.median(one.first for one in turns))
            print(f"run {number + 1}/{runs}, {server.name}: {turns[-1]}", file=sys.stderr, flush=True)


def tail(log: Path) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])


if __name__ == "__main__":
    main()
