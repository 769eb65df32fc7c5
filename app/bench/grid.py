"""The walk through the grid: server by server, cell by cell, every finished cell on disk before the next."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

from app.bench.arms import Arm
from app.bench.cell import Cell, Tokenize, numbers
from app.bench.client import Sampling, Target, http_client
from app.bench.errors import BenchError
from app.bench.load import Load, run, warmups
from app.bench.prompts import PromptSet
from app.bench.report.report import build
from app.bench.servers import serving
from app.bench.store import Store

log = logging.getLogger("app.bench")


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that was asked for. `base` is the arm that speed-ups and equality refer to, if any."""

    arms: tuple[Arm, ...]
    sets: tuple[PromptSet, ...]
    concurrency: tuple[int, ...]
    warmup: int
    sampling: Sampling
    base: str | None
    command: str
    start_timeout_s: float

    def cells(self, arm: Arm) -> list[Cell]:
        """The arm's cells in the order in which they are measured."""
        return [
            Cell(
                arm,
                prompts,
                at_once,
                warmups(self.warmup, at_once),
                self.sampling,
                max(self.concurrency),
            )
            for prompts in self.sets
            for at_once in self.concurrency
        ]


class Progress(Protocol):
    """Who is told how far the run is."""

    def stage(self, words: str) -> None:
        """What happens now."""

    def advance(self, requests: int = 1) -> None:
        """So many of the plan's requests are done, or need not be done."""


class Judge(Protocol):
    """Who asks the base arm's server about the other arms' outputs, and keeps the answers in their records."""

    def open(self, records: Mapping[str, dict[str, Any]]) -> bool:
        """Whether the records, by cell slug, leave anything to ask."""

    async def __call__(self, target: Target, records: Mapping[str, dict[str, Any]]) -> None:
        """Asks it; `target` is the base arm."""


async def measure(
    plan: Plan,
    store: Store,
    progress: Progress,
    tokenize: Tokenize | None = None,
    judge: Judge | None = None,
    fresh: bool = False,
) -> dict[str, Any]:
    """Measures every cell that the store does not have whole, and gives the report.

    Args:
        plan: what to measure.
        store: where records and `report.json` go; the report is there after every cell, marked partial.
        progress: told of every stage and request.
        tokenize: counts tokens where a server gives no usage; None asks the server's own /tokenize.
        judge: called after the cells of the base arm, which has to be the last one, before its server ends;
            the server is started for it alone when the cells are there already.
        fresh: measure what the store already has, too.

    Raises:
        BenchError: an arm cannot be served or does not answer.
    """
    records = {}
    for cell in (cell for arm in plan.arms for cell in plan.cells(arm)):
        record = None if fresh else store.record(cell)
        if record is not None:
            records[cell.slug] = record
    for arm in plan.arms:
        wanted = [cell for cell in plan.cells(arm) if records.get(cell.slug, {"partial": True})["partial"]]
        done = len(plan.cells(arm)) - len(wanted)
        progress.advance(sum(len(cell.prompts.prompts) for cell in plan.cells(arm) if cell not in wanted))
        if done:
            log.info("arm %s: %d of %d cells are there already", arm.name, done, done + len(wanted))
        asked = judge if judge is not None and arm.name == plan.base else None
        if wanted or (asked is not None and asked.open(records)):
            await _arm(plan, arm, wanted, store, records, progress, tokenize, asked)
    return _report(plan, store, records)


async def _arm(
    plan: Plan,
    arm: Arm,
    cells: list[Cell],
    store: Store,
    records: dict[str, dict[str, Any]],
    progress: Progress,
    tokenize: Tokenize | None,
    judge: Judge | None,
) -> None:
    progress.stage(f"{arm.name}: asking {arm.url}" if arm.url else f"{arm.name}: starting its server")
    server_log = store.logs / f"{arm.slug}.log"
    try:
        async with (
            serving(arm, max(plan.concurrency), server_log, plan.start_timeout_s) as url,
            http_client(url, own=arm.url is None) as client,
        ):
            target = await Target.find(client, plan.sets[0].prompts[0])
            for cell in cells:
                progress.stage(f"{arm.name} · {cell.prompts.name} · concurrency {cell.concurrency}")
                await _cell(cell, target, store, records, progress, tokenize)
                _report(plan, store, records)
            if judge is not None:
                await judge(target, records)
    except httpx.HTTPError as error:
        raise BenchError(f"arm {arm.name}: its server was lost: {error!r}") from None


async def _cell(
    cell: Cell,
    target: Target,
    store: Store,
    records: dict[str, dict[str, Any]],
    progress: Progress,
    tokenize: Tokenize | None,
) -> None:
    load = Load(cell.concurrency, cell.warmup)
    try:
        await run(load, target, cell.prompts.prompts, cell.sampling, progress.advance)
    except asyncio.CancelledError:
        if load.began is not None:
            await _keep(cell, load, target, store, records, tokenize)
        raise
    await _keep(cell, load, target, store, records, tokenize)


async def _keep(
    cell: Cell,
    load: Load,
    target: Target,
    store: Store,
    records: dict[str, dict[str, Any]],
    tokenize: Tokenize | None,
) -> None:
    record = await numbers(cell, load, target, tokenize or target.count_tokens)
    store.keep(cell, record)
    records[cell.slug] = record
    if record["failed"]:
        log.warning("%s: %d requests failed: %s", cell.slug, record["failed"], "; ".join(record["errors"]))


def _report(plan: Plan, store: Store, records: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    cells = [cell for arm in plan.arms for cell in plan.cells(arm)]
    report = build(
        command=plan.command,
        base=plan.base,
        protocol={
            "max_tokens": plan.sampling.max_tokens,
            "seed": plan.sampling.seed,
            "temperature": 0,
            "ignore_eos": plan.sampling.ignore_eos,
            "warmup": plan.warmup,
            "concurrency": list(plan.concurrency),
        },
        sets=[prompts.to_json() for prompts in plan.sets],
        records=[records[cell.slug] for cell in cells if cell.slug in records],
        missing=[cell.slug for cell in cells if cell.slug not in records],
    )
    store.write("report.json", json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    return report
