"""Does serving draft what training measured? A draft is served, and then judged at the same anchors without a server.

    python -m benchmarks.served_accuracy --draft plugin/demo/dflash --num-prompts 64 --k 7
    python -m benchmarks.served_accuracy --draft run/checkpoint_best --data gsm8k=gsm8k.jsonl

The gateway is started on the draft, whichever verifier it has, and answers the prompts of a set greedily, one after the
other: the demo's fresh word problems, or those of `--data`, as of `t5gemma2 bench`. Its counters tell the acceptance by
position; every answer tells its steps, and with them the anchors. `benchmarks.serving_walk` then computes in plain
PyTorch what the draft guesses at these anchors, teacher forced with the answers' own tokens.

At position 0 acceptance and accuracy are the same quantity. Further on a server only accepts what follows accepted
tokens, and so does the teacher-forced acceptance; the accuracy of a slot does not. There a server also counts what it
accepts behind an answer's end token, of which the answer tells nothing: what it accepted inside the answers stands in a
column of its own, and is what differences refer to. Exit code 0: at position 0 they differ by no more than the
tolerance. 1: by more, or they could not be compared.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from app.bench.arms import Arm, absolute, own_arms
from app.bench.check import checkpoints_of
from app.bench.client import http_client
from app.bench.command import positive
from app.bench.counters import acceptance_between, settled
from app.bench.errors import BenchError, ServerLost
from app.bench.prompts import PROBLEMS, load, named_templates
from app.bench.servers import run_to_end, serving
from benchmarks.comparison import AGREES, DIFFERS, Comparison, Request, Walk
from plugin.drafts.checkpoint import DEMO, CheckpointError, fetch

TOLERANCE = 0.05


async def served(
    client: httpx.AsyncClient, prompts: Sequence[str], max_tokens: int
) -> tuple[list[Request], int, list[int]]:
    """Sends the prompts one by one: the requests, and how many drafts and, by position, accepted tokens the server
    counted for them.

    Raises:
        BenchError: a request failed, or the server has no counters of a draft.
    """
    try:
        before = await settled(client)
        requests = [await _complete(client, prompt, max_tokens) for prompt in prompts]
        steps = sum(len(request.accepted) for request in requests)
        after = await settled(client, before.counts.drafts + steps if before else 0)
    except httpx.TransportError as error:
        raise ServerLost(f"{client.base_url}: {type(error).__name__}: {error}") from None
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise BenchError(f"{client.base_url}: {type(error).__name__}: {error}") from None
    counted = acceptance_between(before, after)
    if counted is None:
        raise BenchError(f"{client.base_url}: no counters of a draft, or they began anew")
    return requests, counted["drafts"], [position["accepted"] for position in counted["per_position"]]


async def _complete(client: httpx.AsyncClient, prompt: str, max_tokens: int) -> Request:
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    body |= {"return_token_ids": True, "request_metrics": "detailed"}
    answer = await client.post("/v1/completions", json=body)
    answer.raise_for_status()
    return Request.from_reply(answer.json())


def walked(requests: Sequence[Request], draft: str, verifier: str, k: int) -> Walk:
    """The walk over the requests.

    Raises:
        BenchError: it cannot be done.
    """
    from benchmarks.serving_walk import walk_checkpoints

    try:
        return walk_checkpoints(Path(draft), Path(verifier), requests, k)
    except (OSError, RuntimeError, ValueError) as error:
        raise BenchError(f"the walk: {' '.join(str(error).split())}") from None


def compare(arguments: argparse.Namespace) -> Comparison:
    """Serves, walks, compares.

    Raises:
        BenchError: one of them failed.
    """
    demo = DEMO / arguments.draft
    checkpoint = str(demo) if demo.is_dir() else absolute(arguments.draft)
    found = checkpoints_of(checkpoint, arguments.verifier)
    assert found.draft is not None
    (arm,) = own_arms(f"draft:{arguments.k or found.k}", {"draft": checkpoint}, arguments.verifier)
    # Every step drafts K tokens: none measures what another K would be worth.
    settings = (("REQUEST_METRICS", "detailed"), ("BASELINE_SHARE", "0"))
    arm = replace(arm, settings=(*arm.settings, *settings))
    if arguments.url:
        arm = Arm(arm.name, url=arguments.url.rstrip("/"))
    templates = named_templates(arguments.template, [arguments.data])
    prompts = load(arguments.data, arguments.num_prompts, arguments.seed, templates).prompts

    async def run() -> tuple[list[Request], int, list[int]]:
        with tempfile.TemporaryDirectory() as scratch:
            log = Path(scratch, "server.log")
            async with (
                serving(arm, 1, log, arguments.start_timeout) as url,
                http_client(url, own=arm.url is None) as client,
            ):
                return await served(client, prompts, arguments.max_tokens)

    requests, drafts, accepted = run_to_end(run())
    try:
        local = fetch(found)
    except CheckpointError as error:
        raise BenchError(str(error)) from None
    assert local.draft is not None
    walk = walked(requests, local.draft.path, local.verifier.path, len(accepted))
    return Comparison.of(requests, drafts, accepted, walk)


def table(comparison: Comparison) -> Table:
    """A row a position; differences are served, inside the answers, minus teacher forced."""
    anchors = comparison.positions[0].anchors
    greedy = f"{comparison.greedy} of {comparison.tokens} tokens greedy"
    shown = Table(title=f"acceptance at {anchors} anchors, {greedy}")
    names = ("position", "served", "inside answers", "teacher forced", "difference", "accuracy of the slot")
    for name in names:
        shown.add_column(name, justify="right")
    for row in comparison.positions:
        shown.add_row(
            str(row.position),
            f"{row.acceptance:.4f}",
            f"{row.inside_acceptance:.4f}",
            f"{row.forced_acceptance:.4f}",
            f"{row.inside_acceptance - row.forced_acceptance:+.4f}",
            "–" if row.accuracy is None else f"{row.accuracy:.4f}",
        )
    return shown


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.served_accuracy", description="served against teacher-forced acceptance"
    )
    add = parser.add_argument
    add("--draft", default="dflash", metavar="FOLDER", help="or a family of the demo (default %(default)s)")
    add("--verifier", metavar="FOLDER", help="instead of the one that the draft names")
    add("--url", help="a running gateway on this draft (default: one is started)")
    text = "prompt set, as of t5gemma2 bench (default: the demo's problems)"
    add("--data", default=PROBLEMS, metavar="NAME[=PATH]", help=text)
    text = "text of each request of the set; {prompt} stands for the prompt, \\n for a new line"
    add("--template", action="append", default=[], metavar="NAME=TEXT", help=text)
    add("--num-prompts", type=positive, default=64, metavar="N", help="the first N (default %(default)s)")
    add("--k", type=positive, metavar="K", help="draft tokens a step (default: the draft's own)")
    add("--max-tokens", type=positive, default=128, metavar="N", help="longest answer (default %(default)s)")
    add("--seed", type=int, default=0, help="of the problems (default %(default)s)")
    add("--tolerance", type=float, default=TOLERANCE, help="at position 0 (default %(default)s)")
    add("--start-timeout", type=float, default=900.0, metavar="S", help="until a server is ready, seconds")
    arguments = parser.parse_args(argv)
    try:
        comparison = compare(arguments)
    except BenchError as error:
        print(f"t5gemma2: {error}", file=sys.stderr)
        return DIFFERS
    Console(width=None if sys.stdout.isatty() else 120).print(table(comparison))
    code = comparison.exit_code(arguments.tolerance)
    relation = "within" if code == AGREES else "NOT within"
    print(f"position 0: difference {comparison.difference:+.4f}, {relation} {arguments.tolerance:g}")
    return code


if __name__ == "__main__":
    sys.exit(main())
