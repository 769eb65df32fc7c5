"""From parsed flags to a finished benchmark or check: plan, run, show; a failure is one line and exit code 1."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from app.bench.arms import VERIFIER, Arm, absolute, given_arms, named_drafts, own_arms
from app.bench.cell import Tokenize
from app.bench.check import DOES_NOT_FIT, Verdict, checkpoints_of, judge, trial_ks
from app.bench.client import Sampling
from app.bench.errors import BenchError
from app.bench.grid import Grid, Plan
from app.bench.json_schema import read_schema
from app.bench.progress import ProgressBar
from app.bench.prompts import PROBLEMS, SETS, load, named_templates, published
from app.bench.publication import PUBLISHED_KS, cutter, draft_of, into, published_settings, write_report
from app.bench.report import text
from app.bench.report.plots import draw
from app.bench.report.table import table
from app.bench.servers import run_to_end
from app.bench.store import Store
from app.config.settings import variable
from app.drafts.baseline import folder_of
from plugin.drafts.families import FAMILIES

_TABLE_WIDTH = 160


def guarded(work: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    """The exit code of `bench` or `check`, that of an error or an interruption included."""
    logging.basicConfig(level=logging.WARNING, format="t5gemma2: %(message)s")
    logging.getLogger("app.bench").setLevel(logging.INFO)
    try:
        return work(arguments)
    except BenchError as error:
        print(f"t5gemma2: {error}", file=sys.stderr)
        return DOES_NOT_FIT
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("t5gemma2: interrupted; the same command goes on from here", file=sys.stderr)
        return 128 + signal.SIGINT


def bench(arguments: argparse.Namespace) -> int:
    """Runs `t5gemma2 bench`; the exit code, 1 also when too many requests of some cell failed."""
    if arguments.published:
        published_settings()
    arms = _arms(arguments)
    plan = _plan(arguments, arms, _base(arguments.base, arms), arguments.concurrency)
    store = Store(arguments.out)
    tokenize = _tokenizer(arguments.tokenizer) if arguments.tokenizer else None
    with ProgressBar(plan.requests) as progress:
        grid = Grid(plan, store, progress, tokenize, baselines=_baselines(arguments.store_baseline))
        try:
            run_to_end(grid.measure(arguments.fresh))
        finally:
            # Of an interrupted run, and of one whose server was lost, there is a report, too.
            if grid.records:
                _show_report(grid, arguments)
    return 0 if all(plan.good(record) for record in grid.records.values()) else 1


def _arms(arguments: argparse.Namespace) -> list[Arm]:
    """The arms that are named; without any the verifier and the drafts that other flags name, else the demo's."""
    names, drafts = arguments.arms, named_drafts(arguments.draft)
    ks: Sequence[str] = ("",)
    if arguments.into is not None:
        family, own_ks = draft_of(arguments.into)
        if not drafts:
            drafts, ks = {family: absolute(str(arguments.into))}, [f":{k}" for k in own_ks]
    if arguments.published:
        ks = [f":{k}" for k in PUBLISHED_KS]
    if names is None and not arguments.url:
        measured = drafts if arguments.published or arguments.into is not None else {}
        names = ",".join([VERIFIER, *(f"{name}{k}" for name in measured or FAMILIES for k in ks)])
    arms = given_arms(arguments.url)
    if names:
        arms = [*own_arms(names, drafts, _absolute(arguments.verifier)), *arms]
    if len({arm.slug for arm in arms}) < len(arms):
        raise BenchError("--arms and --url name the same arm")
    return arms


def _show_report(grid: Grid, arguments: argparse.Namespace) -> None:
    report, store = grid.report(), grid.store
    drawn = [] if arguments.no_plots else draw(report, store.folder)
    written = write_report(report, store.folder, drawn)
    if arguments.into is not None:
        no_plots = arguments.no_plots
        into(arguments.into, report, grid.records, lambda part, place: [] if no_plots else draw(part, place))
    console = Console(width=None if sys.stdout.isatty() else _TABLE_WIDTH)
    console.print(table(report))
    console.print(f"{written} and {store.folder / 'report.json'}", markup=False, highlight=False)


def _baselines(asked: bool) -> Path | None:
    """Where the started servers read baselines."""
    folder = os.environ.get(variable("baseline_dir")) or None
    return folder_of(None if folder is None else Path(folder)) if asked else None


def check(arguments: argparse.Namespace) -> int:
    """Runs `t5gemma2 check`; the exit code of its verdict."""
    checkpoint, verifier = absolute(arguments.checkpoint), _absolute(arguments.verifier)
    checkpoints = checkpoints_of(checkpoint, verifier)
    names = [*(f"draft:{k}" for k in trial_ks(checkpoints, arguments.k)), VERIFIER]
    if len(arguments.data) > 1:
        raise BenchError("--data: a check takes one prompt set")
    arms = own_arms(",".join(names), {"draft": checkpoint}, verifier)
    plan = _plan(arguments, arms, VERIFIER, (1,))
    with tempfile.TemporaryDirectory() as scratch, ProgressBar(plan.requests) as progress:
        verdict = run_to_end(judge(plan, checkpoints, Store(arguments.out or Path(scratch)), progress))
    _show(verdict)
    return verdict.exit_code


def _show(verdict: Verdict) -> None:
    draft, verifier = verdict.checkpoints.draft, verdict.checkpoints.verifier
    assert draft is not None
    block = f"{draft.num_layers} layers, block {draft.block_size}"
    shown = Table(title=f"{draft.family}, {block}, on {Path(verifier.name).name}")
    for name in ("K", "equal", "near ties", "acc. rate", "acc. length", "speed-up", "estimate"):
        shown.add_column(name, justify="right")
    for trial in verdict.trials:
        shown.add_row(
            str(trial.k),
            f"{trial.equal}/{trial.compared}",
            str(trial.near_ties),
            text.percent(trial.acceptance_rate),
            text.number(trial.mean_acceptance_length, 2),
            text.speedup(trial.speedup),
            text.speedup(trial.estimate),
        )
    console = Console()
    console.print(shown)
    console.print(verdict.conclusion(), markup=False, highlight=False)


def _plan(
    arguments: argparse.Namespace, arms: Sequence[Arm], base: str | None, concurrency: tuple[int, ...]
) -> Plan:
    as_published, sampling = getattr(arguments, "published", False), _sampling(arguments)
    if as_published and arguments.template:
        raise BenchError("--template: the wordings of --published are those of the published drafts")
    if as_published:
        cut = cutter(arms, arguments.tokenizer)
        sets = [published(data, arguments.num_prompts, cut) for data in arguments.data or SETS]
    else:
        asked = arguments.data or [PROBLEMS]
        templates = named_templates(arguments.template, asked)
        sets = [load(data, arguments.num_prompts, arguments.seed, templates) for data in asked]
    names = [prompts.name for prompts in sets]
    if len(set(names)) < len(names):
        raise BenchError("--data names a set twice")
    return Plan(
        own_batches=as_published,
        arms=tuple(arms),
        sets=tuple(sets),
        concurrency=concurrency,
        warmup=arguments.warmup,
        sampling=sampling,
        base=base,
        command=arguments.command,
        start_timeout_s=arguments.start_timeout,
        request_timeout_s=arguments.timeout,
        max_failed=getattr(arguments, "max_failed", 0.0),
    )


def _sampling(arguments: argparse.Namespace) -> Sampling:
    ignore_eos, path = getattr(arguments, "ignore_eos", False), getattr(arguments, "json_schema", None)
    if path is not None and ignore_eos:
        raise BenchError("--ignore-eos: with --json-schema an answer ends where its schema does")
    if path is not None and arguments.published:
        raise BenchError("--json-schema: the published drafts were measured on free text")
    schema = None if path is None else read_schema(path)
    return Sampling(arguments.max_tokens, arguments.seed, ignore_eos, schema)


def _base(asked: str | None, arms: Sequence[Arm]) -> str | None:
    names = [arm.name for arm in arms]
    if asked is not None and asked not in names:
        raise BenchError(f"--base {asked} is none of the arms {', '.join(names)}")
    return asked or (VERIFIER if VERIFIER in names else None)


def _absolute(checkpoint: str | None) -> str | None:
    return absolute(checkpoint) if checkpoint else None


def _tokenizer(folder: Path) -> Tokenize:
    """Counts with `tokenizer.json` of a folder."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more specific
        raise BenchError(f"--tokenizer {path}: {error}") from None

    async def count(words: str) -> int:
        return len(tokenizer.encode(words, add_special_tokens=False).ids)

    return count
