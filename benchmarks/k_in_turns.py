"""One server, several K in turns: what the draft gives, what the server says that it gives, and what `auto` loses.

    python -m benchmarks.k_in_turns [--draft plugin/demo/dflash] [--ks 0,3,5,7,auto] [--concurrency 1,4]
        [--load problems,change,unpaid,schema] [--rounds 6] [--requests 24] [--out FILE]
    python -m benchmarks.k_in_turns --full-size 4.0 --ks 0,3,7 --load problems --out benchmarks/results/h200.json

A machine drifts between two servers' runs by more than two K differ, so that the K are compared on one server, each for
so many requests, in changing order. Printed by load and concurrency: tokens/s at each K and over K = 0, medians of the
rounds with their range; the live estimate after each turn at the largest K (`overall` of `/drafts/stats`) over what was
measured in the same round; and tokens/s of `auto` over those of the best fixed K, round by round.

With `--full-size` the pair has the published shape, random weights and vLLM's synthetic acceptance, so many tokens a
step at the largest K: what a GPU gives, where only the load `problems` says anything. `--out` records the ratios of the
rounds' medians in a results file.

Loads: `problems` are the demo's own, greedy; `unpaid` the same at a temperature and with a penalty at which hardly
a token can be guessed; `change` begins as the one and goes on as the other in the middle of every turn; `schema` is
`problems` answered in compact JSON by `benchmarks/invoice.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.bench.arms import named_drafts, own_arms
from app.bench.client import Sampling, Target, http_client, optional_json
from app.bench.command import positives
from app.bench.errors import BenchError
from app.bench.prompts import load as prompt_set
from app.bench.servers import run_to_end, serving
from benchmarks.engine.checkpoints import write_pair
from benchmarks.results import record, typed

AUTO = "auto"
MAX_TOKENS = 64
UNPAID: dict[str, Any] = {"temperature": 2.0, "top_k": 0, "repetition_penalty": 2.0}
INVOICE: dict[str, Any] = {
    "response_format": {
        "type": "json_schema",
        "json_schema": {
            "name": "invoice",
            "schema": json.loads(Path(__file__).with_name("invoice.json").read_text(encoding="utf-8")),
        },
    },
    "structured_outputs": {"disable_any_whitespace": True},
}
LOADS = {
    "problems": ({}, {}),
    "change": ({}, UNPAID),
    "unpaid": (UNPAID, UNPAID),
    "schema": (INVOICE, INVOICE),
}
"""What is added to the requests of the first and of the second half of a turn."""
START_S = 600.0


@dataclass(frozen=True, slots=True)
class With(Target):
    """The same server, asked with more fields."""

    fields: tuple[tuple[str, Any], ...] = ()

    def body(self, prompt: str | list[int], sampling: Sampling) -> dict[str, Any]:
        return {**Target.body(self, prompt, sampling), **dict(self.fields)}


async def tokens_per_second(targets: Sequence[Target], prompts: Sequence[str], clients: int) -> float:
    """Of `clients` that send their next request when one is answered: prompt i to `targets[i]`."""
    waiting, tokens = iter(zip(targets, prompts, strict=True)), 0

    async def client() -> None:
        nonlocal tokens
        for target, prompt in waiting:
            reply = await target.complete(prompt, Sampling(max_tokens=MAX_TOKENS, ignore_eos=True))
            if reply.error is not None:
                raise BenchError(reply.error)
            tokens += reply.tokens or 0

    clock = asyncio.get_running_loop().time
    began = clock()
    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    return tokens / (clock() - began)


async def turn(
    target: Target, k: str, load: str, prompts: Sequence[str], clients: int
) -> tuple[float, dict[str, Any]]:
    """Tokens/s of one turn at K = k, and the server's estimate after it. As many requests as clients go before."""
    answer = await target.client.post("/drafts/k", json={"k": k if k == AUTO else int(k)})
    answer.raise_for_status()
    first, second = (
        With(target.client, target.model, target.gives_ids, fields=tuple(fields.items()))
        for fields in LOADS[load]
    )
    half = len(prompts) // 2
    await tokens_per_second([first] * clients, prompts[:clients], clients)
    rate = await tokens_per_second([first] * half + [second] * (len(prompts) - half), prompts, clients)
    return rate, (await optional_json(target.client, "/drafts/stats"))["estimate"]


def report(rates: dict[str, list[float]], estimates: list[float | None]) -> dict[str, Any]:
    """Of one load and concurrency: `rates` by K, a figure a round; `estimates` at the largest K likewise, None where
    the server told none.
    """
    fixed = [k for k in rates if k != AUTO]
    medians = {k: statistics.median(rates[k]) for k in rates}
    found: dict[str, Any] = {"tokens_per_s": {k: round(median, 1) for k, median in medians.items()}}
    if "0" in rates:
        ratios = {k: [one / zero for one, zero in zip(rates[k], rates["0"], strict=True)] for k in rates}
        found["speedup"] = {
            k: [round(of(each), 3) for of in (statistics.median, min, max)] for k, each in ratios.items()
        }
        largest = ratios[max(fixed, key=int)]
        pairs = zip(estimates, largest, strict=True)
        told = [(said, said / measured) for said, measured in pairs if said is not None]
        over = [each for _, each in told]
        if over:
            found["estimate"] = round(statistics.median(said for said, _ in told), 3)
            found["estimate_over_measured"] = [round(of(over), 3) for of in (statistics.median, min, max)]
    if AUTO in rates:
        best = max(fixed, key=lambda k: medians[k])
        over = [auto / one for auto, one in zip(rates[AUTO], rates[best], strict=True)]
        found["best_k"] = best
        found["auto_over_best"] = [round(of(over), 3) for of in (statistics.median, min, max)]
    return found


def figures(found: Mapping[tuple[str, int], Mapping[str, Any]]) -> dict[str, float]:
    """By name, of what `report` made of each load and concurrency."""
    made = {}
    for (load, clients), one in found.items():
        for figure in ("estimate_over_measured", "auto_over_best"):
            if figure in one:
                made[f"{figure}_{load}_bs{clients}"] = one[figure][0]
    return made


async def measure(asked: argparse.Namespace, folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Every load and concurrency on one server, which logs into `folder`."""
    ks = asked.ks
    largest = max((k for k in ks if k != AUTO), key=int)
    draft, application = asked.draft, None
    if asked.full_size is not None:
        draft, application = write_pair(folder), "benchmarks.synthetic_gateway:main"
        os.environ["SYNTHETIC_ACCEPTANCE_LENGTH"] = str(asked.full_size)
    (arm,) = own_arms("draft", named_drafts([f"draft={draft}"]), None)
    most = max(asked.concurrency)
    prompts = prompt_set("problems", asked.rounds * asked.requests * most, 0, {}).prompts
    found = {}
    log = folder / "server.log"
    async with serving(arm, most, log, START_S, application) as url, http_client(url, own=True) as client:
        target = await Target.find(client, prompts[0])
        for load in asked.load:
            for clients in asked.concurrency:
                rates: dict[str, list[float]] = {k: [] for k in ks}
                estimates = []
                for number in range(asked.rounds):
                    count = asked.requests * clients
                    asked_now = prompts[number * count : (number + 1) * count]
                    for i in range(len(ks)):
                        k = ks[(i + number) % len(ks)]
                        rate, estimate = await turn(target, k, load, asked_now, clients)
                        rates[k].append(rate)
                        speedup = estimate["speedup"]
                        print(load, clients, number, k, f"{rate:.1f} tokens/s", speedup, flush=True)
                        if k == largest:
                            estimates.append(speedup["overall"] if speedup else None)
                found[load, clients] = report(rates, estimates)
                print(json.dumps(found[load, clients]), flush=True)
    return found


def _ks(text: str) -> list[str]:
    ks = text.split(",")
    if not any(k.isdecimal() for k in ks) or not all(k.isdecimal() or k == AUTO for k in ks):
        raise argparse.ArgumentTypeError(f"{text}: a comma list of numbers, with or without {AUTO}")
    return ks


def _loads(text: str) -> list[str]:
    if wrong := set(text.split(",")) - set(LOADS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(wrong))}: not one of {', '.join(LOADS)}")
    return text.split(",")


def main(words: Sequence[str] | None = None) -> None:
    """Prints the figures, and records them."""
    flags = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    which = flags.add_mutually_exclusive_group()
    which.add_argument("--draft", default="plugin/demo/dflash")
    which.add_argument(
        "--full-size", type=float, metavar="LENGTH", help="random weights; tokens a step at the largest K"
    )
    flags.add_argument(
        "--ks", type=_ks, default=_ks("0,3,5,7,auto"), help="comma list; auto among them, or not"
    )
    flags.add_argument("--concurrency", type=positives, default=(1, 4))
    flags.add_argument("--load", type=_loads, default=list(LOADS), help=f"comma list of {', '.join(LOADS)}")
    flags.add_argument("--rounds", type=int, default=6)
    flags.add_argument("--requests", type=int, default=24, help="of each client in a turn")
    flags.add_argument("--out", type=Path, help="record the ratios in this results file")
    asked = flags.parse_args(words)
    if asked.full_size is not None and asked.load != ["problems"]:
        flags.error("--full-size: what is accepted is the same on every load, so --load problems")
    with tempfile.TemporaryDirectory() as folder:
        found = run_to_end(measure(asked, Path(folder)))
    if asked.out is not None:
        details = {f"{load}, concurrency {clients}": one for (load, clients), one in found.items()}
        record(asked.out, typed("benchmarks.k_in_turns"), figures(found), details)


if __name__ == "__main__":
    main()
