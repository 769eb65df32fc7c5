"""The walk through the grid: server by server, cell by cell, every finished cell on disk before the next."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import httpx

from app.bench.arms import Arm
from app.bench.cell import Cell, Tokenize, numbers
from app.bench.client import REQUEST_TIMEOUT_S, Sampling, Target, http_client
from app.bench.errors import BenchError, ServerLost
from app.bench.load import Load, run, warmups
from app.bench.progress import ProgressBar
from app.bench.prompts import PromptSet
from app.bench.reply import in_words
from app.bench.report.report import build
from app.bench.servers import serving
from app.bench.store import Store
from app.bench.worth import estimate, measured_arms, store_baseline

log = logging.getLogger("app.bench")

MAX_FAILED = 0.01
"""Share of a cell's requests that may fail."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that was asked for. `base` is the arm that speed-ups and equality refer to, if any; a cell of whose
    requests a larger share than `max_failed` failed is not good, and is measured again by the next run. `own_batches`
    gives every concurrency a server whose batch is as large, instead of one server for all.
    """

    arms: tuple[Arm, ...]
    sets: tuple[PromptSet, ...]
    concurrency: tuple[int, ...]
    warmup: int
    sampling: Sampling
    base: str | None
    command: str
    start_timeout_s: float
    request_timeout_s: float = REQUEST_TIMEOUT_S
    max_failed: float = MAX_FAILED
    own_batches: bool = False

    def cells(self, *arms: Arm) -> list[Cell]:
        """The cells of these arms, or of all, in the order in which they are measured."""
        most = max(self.concurrency)
        return [
            Cell(
                arm, prompts, at_once, warmups(self.warmup, at_once), self.sampling,
                at_once if self.own_batches else most,
            )
            for arm in arms or self.arms
            for prompts in self.sets
            for at_once in self.concurrency
        ]  # fmt: skip

    @property
    def requests(self) -> int:
        """Measured requests of the whole plan."""
        return sum(len(cell.prompts.prompts) for cell in self.cells())

    @property
    def protocol(self) -> dict[str, Any]:
        """What every request has in common, JSON-ready."""
        schema = self.sampling.json_schema
        return {
            "max_tokens": self.sampling.max_tokens,
            "seed": self.sampling.seed,
            "temperature": 0,
            "ignore_eos": self.sampling.ignore_eos,
            "json_schema_sha256": None if schema is None else hashlib.sha256(schema.encode()).hexdigest(),
            "warmup": self.warmup,
            "concurrency": list(self.concurrency),
            "request_timeout_s": self.request_timeout_s,
            "max_failed": self.max_failed,
        }

    def good(self, record: Mapping[str, Any]) -> bool:
        """Whether a cell's record, or its row of the report, is whole and has not too many failures."""
        failed: float = record["failed"] / max(1, record["completed"] + record["failed"])
        return not record["partial"] and record["completed"] > 0 and failed <= self.max_failed


class Judge(Protocol):
    """Who asks the base arm's server about the other arms' outputs, and keeps the answers in their records."""

    def open(self, records: Mapping[str, dict[str, Any]]) -> bool:
        """Whether the records, by cell slug, leave anything to ask."""

    async def __call__(self, target: Target, records: Mapping[str, dict[str, Any]]) -> None:
        """Asks it; `target` is the base arm."""


def _batch(cell: Cell) -> int:
    return cell.batch or cell.concurrency


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
        """Measures every cell that the store does not have as good, all of them if `fresh`, and gives the report.

        Raises:
            BenchError: an arm cannot be served or does not answer.
        """
        for cell in self.plan.cells():
            if not fresh and (record := self.store.record(cell)) is not None:
                self.records[cell.slug] = record
        for arm in self.plan.arms:
            cells = self.plan.cells(arm)
            good = [cell for cell in cells if self._is_good(cell)]
            self.progress.advance(sum(len(cell.prompts.prompts) for cell in good))
            if good:
                log.info("arm %s: %d of %d cells are there already", arm.name, len(good), len(cells))
            judge = self.judge if arm.name == self.plan.base else None
            left = [cell for cell in cells if cell not in good]
            by_batch = groupby(sorted(left, key=_batch), key=_batch)
            groups = [list(group) for _, group in by_batch]
            asked = judge is not None and judge.open(self.records)
            if not groups and (asked or arm in self._with_baseline):
                groups = [[]]
            for group in groups:
                await self._arm(arm, group, judge, last=group is groups[-1])
        return self.report()

    def _is_good(self, cell: Cell) -> bool:
        record = self.records.get(cell.slug)
        return record is not None and self.plan.good(record)

    @property
    def _with_baseline(self) -> list[Arm]:
        return [] if self.baselines is None else measured_arms(self.plan.arms)

    async def _arm(self, arm: Arm, cells: list[Cell], judge: Judge | None, last: bool) -> None:
        self.progress.stage(
            f"{arm.name}: asking {arm.url}" if arm.url else f"{arm.name}: starting its server"
        )
        batch = max((_batch(cell) for cell in cells), default=max(self.plan.concurrency))
        name = f"{arm.slug}.bs{batch}" if self.plan.own_batches else arm.slug
        server_log = self.store.logs / f"{name}.log"
        try:
            async with (
                serving(arm, batch, server_log, self.plan.start_timeout_s) as url,
                http_client(url, own=arm.url is None) as client,
            ):
                target = await Target.find(client, self.plan.sets[0].prompts[0], self.plan.request_timeout_s)
                for cell in cells:
                    self.progress.stage(f"{arm.name} · {cell.prompts.name} · concurrency {cell.concurrency}")
                    await self._cell(cell, target)
                if last and judge is not None:
                    await judge(target, self.records)
                if last and arm in self._with_baseline and self.baselines is not None:
                    self.progress.stage(f"{arm.name}: steps without a draft, to be stored")
                    prompts, plan = self.plan.sets[0].prompts, self.plan
                    await store_baseline(
                        target, prompts, plan.sampling, plan.concurrency, plan.warmup, self.baselines
                    )
        except (ServerLost, httpx.HTTPError) as error:
            raise BenchError(f"arm {arm.name}: its server was lost: {error!r}") from None

    async def _cell(self, cell: Cell, target: Target) -> None:
        load = Load(cell.concurrency, cell.warmup)
        try:
            await run(load, target, cell.prompts.prompts, cell.sampling, self.progress.advance)
        finally:
            # What was measured until an interruption, or until the server was lost, is kept, too, and marked.
            if load.began is not None:
                await self._keep(cell, load, target)
                self.report()

    async def _keep(self, cell: Cell, load: Load, target: Target) -> None:
        worth = await estimate(target) if load.whole else None
        record = await numbers(cell, load, target, self.tokenize or target.count_tokens, worth)
        self.store.keep(cell, record)
        self.records[cell.slug] = record
        if record["failed"]:
            counts, words = in_words(record["failures"]), "; ".join(record["errors"])
            log.warning("%s: %d requests failed (%s): %s", cell.slug, record["failed"], counts, words)

    def report(self) -> dict[str, Any]:
        """The report of what is measured so far, which is also written as `report.json`."""
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
