"""The walk through the grid: server by server, cell by cell, every finished cell on disk before the next."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx

from app.bench.arms import Arm
from app.bench.cell import Cell, Tokenize, numbers
from app.bench.client import Sampling, Target, http_client
from app.bench.errors import BenchError
from app.bench.load import Load, run, warmups
from app.bench.progress import ProgressBar
from app.bench.prompts import PromptSet
from app.bench.report.report import build
from app.bench.servers import serving
from app.bench.store import Store
from app.bench.worth import estimate, measured_arms, store_baseline

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

    def cells(self, *arms: Arm) -> list[Cell]:
        """The cells of these arms, or of all, in the order in which they are measured."""
        batch = max(self.concurrency)
        return [
            Cell(arm, prompts, at_once, warmups(self.warmup, at_once), self.sampling, batch)
            for arm in arms or self.arms
            for prompts in self.sets
            for at_once in self.concurrency
        ]

    @property
    def requests(self) -> int:
        """Measured requests of the whole plan."""
        return sum(len(cell.prompts.prompts) for cell in self.cells())

    @property
    def protocol(self) -> dict[str, Any]:
        """What every request has in common, JSON-ready."""
        return {
            "max_tokens": self.sampling.max_tokens,
            "seed": self.sampling.seed,
            "temperature": 0,
            "ignore_eos": self.sampling.ignore_eos,
            "warmup": self.warmup,
            "concurrency": list(self.concurrency),
        }


class Judge(Protocol):
    """Who asks the base arm's server about the other arms' outputs, and keeps the answers in their records."""

    def open(self, records: Mapping[str, dict[str, Any]]) -> bool:
        """Whether the records, by cell slug, leave anything to ask."""

    async def __call__(self, target: Target, records: Mapping[str, dict[str, Any]]) -> None:
        """Asks it; `target` is the base arm."""


@dataclass(slots=True)
class Grid:
    """A plan that is measured; `records` has what is there, by cell slug.

    Args:
        plan: what to measure.
        store: where records and `report.json` go; the report is there after every cell, marked partial.
        progress: shows every stage and request.
        tokenize: counts tokens where a server gives no usage; None asks the server's own /tokenize.
        judge: called after the cells of the base arm, which has to be the last one, before its server ends; the server
            is started for it alone when the cells are there already.
        baselines: where the duration of a step without a draft is stored, measured on the server of each draft after
            its cells; None measures none.
    """

    plan: Plan
    store: Store
    progress: ProgressBar
    tokenize: Tokenize | None = None
    judge: Judge | None = None
    baselines: Path | None = None
    records: dict[str, dict[str, Any]] = field(default_factory=dict)

    async def measure(self, fresh: bool = False) -> dict[str, Any]:
        """Measures every cell that the store does not have whole, all of them if `fresh`, and gives the report.

        Raises:
            BenchError: an arm cannot be served or does not answer.
        """
        for cell in self.plan.cells():
            if not fresh and (record := self.store.record(cell)) is not None:
                self.records[cell.slug] = record
        for arm in self.plan.arms:
            cells = self.plan.cells(arm)
            whole = [cell for cell in cells if not self.records.get(cell.slug, {"partial": True})["partial"]]
            self.progress.advance(sum(len(cell.prompts.prompts) for cell in whole))
            if whole:
                log.info("arm %s: %d of %d cells are there already", arm.name, len(whole), len(cells))
            judge = self.judge if arm.name == self.plan.base else None
            asked = judge is not None and judge.open(self.records)
            if len(whole) < len(cells) or asked or arm in self._with_baseline:
                await self._arm(arm, [cell for cell in cells if cell not in whole], judge)
        return self._report()

    @property
    def _with_baseline(self) -> list[Arm]:
        return [] if self.baselines is None else measured_arms(self.plan.arms)

    async def _arm(self, arm: Arm, cells: list[Cell], judge: Judge | None) -> None:
        self.progress.stage(
            f"{arm.name}: asking {arm.url}" if arm.url else f"{arm.name}: starting its server"
        )
        server_log = self.store.logs / f"{arm.slug}.log"
        try:
            async with (
                serving(arm, max(self.plan.concurrency), server_log, self.plan.start_timeout_s) as url,
                http_client(url, own=arm.url is None) as client,
            ):
                target = await Target.find(client, self.plan.sets[0].prompts[0])
                for cell in cells:
                    self.progress.stage(f"{arm.name} · {cell.prompts.name} · concurrency {cell.concurrency}")
                    await self._cell(cell, target)
                    self._report()
                if judge is not None:
                    await judge(target, self.records)
                if arm in self._with_baseline and self.baselines is not None:
                    self.progress.stage(f"{arm.name}: steps without a draft, to be stored")
                    prompts, plan = self.plan.sets[0].prompts, self.plan
                    await store_baseline(
                        target, prompts, plan.sampling, plan.concurrency, plan.warmup, self.baselines
                    )
        except httpx.HTTPError as error:
            raise BenchError(f"arm {arm.name}: its server was lost: {error!r}") from None

    async def _cell(self, cell: Cell, target: Target) -> None:
        load = Load(cell.concurrency, cell.warmup)
        try:
            await run(load, target, cell.prompts.prompts, cell.sampling, self.progress.advance)
        except asyncio.CancelledError:
            if load.began is not None:
                await self._keep(cell, load, target)
            raise
        await self._keep(cell, load, target)

    async def _keep(self, cell: Cell, load: Load, target: Target) -> None:
        worth = await estimate(target)
        record = await numbers(cell, load, target, self.tokenize or target.count_tokens, worth)
        self.store.keep(cell, record)
        self.records[cell.slug] = record
        if record["failed"]:
            words = "; ".join(record["errors"])
            log.warning("%s: %d requests failed: %s", cell.slug, record["failed"], words)

    def _report(self) -> dict[str, Any]:
        slugs = [cell.slug for cell in self.plan.cells()]
        report = build(
            command=self.plan.command,
            base=self.plan.base,
            protocol=self.plan.protocol,
            sets=[prompts.to_json() for prompts in self.plan.sets],
            records=[self.records[slug] for slug in slugs if slug in self.records],
            missing=[slug for slug in slugs if slug not in self.records],
        )
        self.store.write("report.json", json.dumps(report, indent=2, ensure_ascii=False) + "\n")
        return report
