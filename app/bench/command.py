"""`t5gemma2 bench` and `t5gemma2 check`: their flags. What they do is imported only when they run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from plugin.drafts.families import FAMILIES

_DEFAULT_ARMS = ",".join(("verifier", *FAMILIES))
_REPEATED: dict[str, Any] = {"action": "append", "default": []}


def add_commands(commands: Any) -> None:
    """Adds both to the subparsers of the command line."""
    _add_bench(commands.add_parser("bench", help="measure servers and drafts", allow_abbrev=False))
    _add_check(commands.add_parser("check", help="judge one draft", allow_abbrev=False))


def positive(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")
    return int(text)


def positives(text: str) -> tuple[int, ...]:
    """A comma list of them, in order and each once."""
    return tuple(dict.fromkeys(positive(part.strip()) for part in text.split(",")))


def share(text: str) -> float:
    """A number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share from 0 to 1")
    return value


def _add_bench(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--arms",
        metavar="LIST",
        help="what to serve and measure, each on a server of its own that is started and stopped: verifier, NAME or"
        " NAME:K with NAME from --draft, a demo family, a folder or a hub id"
        f" (default {_DEFAULT_ARMS})",
    )
    add("--url", **_REPEATED, metavar="[NAME=]URL", help="a running server to measure; may be repeated")
    add("--draft", **_REPEATED, metavar="NAME=CHECKPOINT", help="what NAME means in --arms")
    add("--verifier", metavar="CHECKPOINT", help="verifier of every arm (default: the drafts' own)")
    text = "arm that speed-up and equality refer to (default: verifier, if it is among them)"
    add("--base", metavar="ARM", help=text)
    text = "requests at once (default 1,4)"
    add("--concurrency", type=positives, default=(1, 4), metavar="LIST", help=text)
    add("--ignore-eos", action="store_true", help="go on to --max-tokens in every request")
    text = "hold every answer to this JSON Schema: the load of structured output, as with `response_format`"
    add("--json-schema", type=Path, metavar="FILE", help=text)
    text = (
        "as the published drafts were measured: their six sets, wordings and sizes, each draft at K = 3 and 7, a server"
        " a concurrency (docs/benchmark.md)"
    )
    add("--published", action="store_true", help=text)
    text = "also write the results into benchmarks/bs1, bs4 ... of this draft, the one that is measured by default"
    add("--into", type=Path, metavar="CHECKPOINT", help=text)
    text = "counts tokens where a server reports no usage (default: the server's /tokenize)"
    add("--tokenizer", type=Path, metavar="FOLDER", help=text)
    text = "share of a cell's requests that may fail; above it the exit code is 1 (default %(default)g)"
    add("--max-failed", type=share, default=0.01, metavar="SHARE", help=text)
    text = (
        "also time steps without a draft on each draft's server and keep them, for /drafts/stats of later servers"
        " (T5GEMMA_BASELINE_DIR)"
    )
    add("--store-baseline", action="store_true", help=text)
    add("--fresh", action="store_true", help="measure again what the output folder already has")
    add("--no-plots", action="store_true", help="draw nothing")
    _add_shared(parser, out=Path("bench-results"))
    parser.set_defaults(run=_run_bench)


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Exit code 0: the draft fits, leaves greedy output alone and is faster; 1: it does not fit or could not be"
        " served; 3: output differs; 4: it is not faster at any K."
    )
    add = parser.add_argument
    add("checkpoint", help="the draft: a folder or a hub id")
    add("--verifier", metavar="CHECKPOINT", help="instead of the one that the draft names")
    add("--k", type=positives, default=(), metavar="LIST", help="K to try (default 1, 3 and the largest)")
    _add_shared(parser, out=None, count=32)
    parser.set_defaults(run=_run_check)


def _add_shared(parser: argparse.ArgumentParser, out: Path | None, count: int | None = None) -> None:
    add = parser.add_argument
    add(
        "--data",
        **_REPEATED,
        metavar="NAME[=PATH]",
        help="prompt set: problems (the demo's generator, the default), gsm8k, humaneval, math500, mbpp, mtbench,"
        " ultrachat from the hub, or NAME=PATH of a JSONL file; may be repeated",
    )
    text = "text of each request of a set; {prompt} stands for the prompt, \\n for a new line"
    add("--template", **_REPEATED, metavar="NAME=TEXT", help=text)
    text = f"the first N of each set (default {count or 'all, 200 of problems'})"
    add("--num-prompts", type=positive, default=count, metavar="N", help=text)
    add("--warmup", type=positive, default=8, metavar="N", help="excluded requests (default %(default)s)")
    add("--max-tokens", type=positive, default=128, metavar="N", help="longest output (default %(default)s)")
    add("--seed", type=int, default=0, help="of requests and of the generator (default %(default)s)")
    add("--start-timeout", type=float, default=900.0, metavar="S", help="until a server is ready, seconds")
    text = "seconds that a request may take before it counts as failed (default %(default)g)"
    add("--timeout", type=float, default=600.0, metavar="S", help=text)
    add("--out", type=Path, default=out, metavar="FOLDER", help=f"results (default {out or 'none kept'})")


def _run_bench(arguments: argparse.Namespace) -> None:
    from app.bench.entry import bench, guarded

    raise SystemExit(guarded(bench, arguments))


def _run_check(arguments: argparse.Namespace) -> None:
    from app.bench.entry import check, guarded

    raise SystemExit(guarded(check, arguments))
