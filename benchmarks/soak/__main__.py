"""`python -m benchmarks.soak`: 10 000 mixed requests against answers made before, one at a time and without drafts.

    python -m benchmarks.soak [--requests 10000] [--url URL] [--out FILE]
    python -m benchmarks.soak --overload

Starts the bundled demo (or takes a server that allows POST /drafts/k), asks every different request alone at K = 0,
then sends them mixed, many at a time, K changing meanwhile; clients leave, bodies are broken. Exit code 1 unless every
reply is the one that was made before, the server's counters add up to what the clients saw, the API process has not
grown by more than 5 % since the first fifth of the requests, and the engine is idle and has everything free at the end.

With --overload, more requests arrive than can be served: see `benchmarks.soak.overload`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from app.bench.arms import Arm
from app.bench.client import http_client
from app.bench.command import positive
from app.bench.errors import BenchError
from app.bench.servers import run_to_end, serving
from app.process.cpu_process import physical_cores
from benchmarks.results import measured_with, typed
from benchmarks.soak.books import Check
from benchmarks.soak.overload import SECONDS, Overloaded, overload
from benchmarks.soak.run import Soaked, run
from plugin.drafts.checkpoint import DEMO

MODEL = DEMO / "dflash"
MIXED = {
    "MAX_MODEL_LEN": "256",
    "MAX_ENCODER_LEN": "256",
    # Not all prompts' states at once, so that some are let go and made again.
    "ENCODER_CACHE_BYTES": str(64 << 10),
}
LIMITED = {
    "MAX_MODEL_LEN": "256",
    "MAX_QUEUED_REQUESTS": "16",
    "REQUEST_TIMEOUT_S": "30",
    "BASELINE_SHARE": "0",
}
BATCH = 4
START_S = 240.0


def absolute(text: str) -> Path:
    return Path(text).absolute()


async def _served(arguments: argparse.Namespace) -> Soaked | Overloaded:
    settings = LIMITED if arguments.overload else MIXED
    if arguments.overload:
        # The clients, which are elsewhere otherwise, share the machine with the server here: a core is theirs.
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, physical_cores() - 1)))
    arm = Arm("soak", url=arguments.url, settings=(("MODEL", str(MODEL)), *settings.items()))
    with tempfile.TemporaryDirectory() as folder:
        log = arguments.log or Path(folder, "server.log")
        async with (
            serving(arm, BATCH, log, START_S) as url,
            http_client(url, own=arguments.url is None) as client,
        ):
            if arguments.overload:
                limit, deadline = BATCH + int(LIMITED["MAX_QUEUED_REQUESTS"]), LIMITED["REQUEST_TIMEOUT_S"]
                return await overload(client, limit, float(deadline), arguments.seconds)
            return await run(
                client, arguments.requests, arguments.prompts, arguments.at_once, arguments.seed, say
            )


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def table(checks: Sequence[Check], title: str) -> Table:
    """A row a check."""
    shown = Table(title=title)
    for name in ("", "found", "must be", "right"):
        shown.add_column(name)
    for check in checks:
        bounds = f"{check.low:g}" if check.low == check.high else f"{check.low:.4g} ... {check.high:.4g}"
        shown.add_row(check.name, f"{check.found:.4g}", bounds, "yes" if check.right else "NO")
    return shown


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description=(__doc__ or "").splitlines()[0]
    )
    add = parser.add_argument
    add("--requests", type=positive, default=10_000, metavar="N", help="default %(default)s")
    add("--prompts", type=positive, default=16, metavar="N", help="different ones (default %(default)s)")
    add("--at-once", type=positive, default=12, metavar="N", help="requests under way (default %(default)s)")
    add("--seed", type=int, default=0, help="of the order")
    add("--overload", action="store_true", help="arrivals at 2 and 5 times the capacity instead")
    add("--seconds", type=float, default=SECONDS, metavar="S", help="of each rate (default %(default)s)")
    add("--url", help="a running server (default: one with the demo is started)")
    add("--out", type=Path, metavar="FILE", help="where everything is written as JSON")
    add("--log", type=absolute, metavar="FILE", help="of the started server")
    arguments = parser.parse_args(argv)
    try:
        done = run_to_end(_served(arguments))
    except BenchError as error:
        print(f"t5gemma2: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("t5gemma2: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    checks = done.all_checks()
    Console(width=None if sys.stdout.isatty() else 120).print(table(checks, done.title))
    wrong = [*(check.words for check in checks if not check.right), *done.faults()]
    for words in wrong:
        print(words)
    if arguments.out is not None:
        told = {"command": typed("benchmarks.soak"), **measured_with()}
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({**told, **done.to_json()}, indent=2) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
