"""`t5gemma2 check`: does this draft fit this verifier, leave greedy output alone, and pay, and at which K?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.bench.arms import VERIFIER
from app.bench.cell import Cell
from app.bench.client import Target
from app.bench.equality import compare
from app.bench.errors import BenchError
from app.bench.grid import Grid, Plan
from app.bench.progress import ProgressBar
from app.bench.reply import in_words
from app.bench.report import text
from app.bench.store import Store
from app.drafts.probe import USELESS
from plugin.drafts.checkpoint import CheckpointError, Checkpoints, resolve

FITS, DOES_NOT_FIT, OUTPUT_DIFFERS, NOT_FASTER = 0, 1, 3, 4
"""Exit codes; 2 is wrong usage, as everywhere."""

Records = Mapping[str, dict[str, Any]]
"""What was measured, by cell slug."""

NEAR_TIE = 0.1
"""A first difference where the verifier's two likeliest tokens are nearer than this in logprob is rounding, not error:
in bfloat16 a batch of 1 + K tokens and a single one need not round alike.
"""


@dataclass(frozen=True, slots=True)
class Trial:
    """What one K gave: `compared` of the `prompts`, for a request may fail with the draft or without, `failures` by
    cause; `near_ties` of the differences are rounding.
    """

    k: int
    prompts: int
    compared: int
    equal: int
    near_ties: int
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    speedup: float | None
    failures: Mapping[str, int] = field(default_factory=dict)
    estimate: float | None = None
    """The speed-up that the draft's server itself estimated."""

    @property
    def faithful(self) -> bool:
        """Every prompt was answered, and every output is the verifier's own, near ties apart."""
        return 0 < self.prompts == self.compared == self.equal + self.near_ties

    def fault(self) -> str:
        """What is not faithful, in words."""
        failed, other = self.prompts - self.compared, self.compared - self.equal - self.near_ties
        parts = [f"{other} of {self.compared}"] if other else []
        parts += [f"{failed} of {self.prompts} failed"] if failed or not self.prompts else []
        causes = f" ({in_words(self.failures)})" if self.failures else ""
        return f"{' and '.join(parts)} at K={self.k}{causes}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of a check."""

    checkpoints: Checkpoints
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial | None:
        """The fastest K, None when no speed-up is known."""
        known = [trial for trial in self.trials if trial.speedup is not None]
        return max(known, key=lambda trial: trial.speedup or 0, default=None)

    @property
    def exit_code(self) -> int:
        """0: fits, same output, faster at the best K. 3: other output, or none. 4: not faster at any K."""
        if not all(trial.faithful for trial in self.trials):
            return OUTPUT_DIFFERS
        return FITS if self.best is not None and (self.best.speedup or 0) > 1 else NOT_FASTER

    def conclusion(self) -> str:
        """One line for a person."""
        if self.exit_code == OUTPUT_DIFFERS:
            wrong = [trial for trial in self.trials if not trial.faithful]
            faults = ", ".join(trial.fault() for trial in wrong)
            if all(trial.equal + trial.near_ties == trial.compared for trial in wrong):
                return f"requests failed: {faults}"
            return f"output differs from the verifier's own: {faults}"
        known = [one for one in self.trials if one.mean_acceptance_length is not None]
        most = max(known, key=lambda one: one.mean_acceptance_length or 0, default=None)
        if most is not None and (most.mean_acceptance_length or 0) < USELESS:
            return (
                f"fits and leaves the output alone, but is useless: {most.mean_acceptance_length:.2f} tokens a step at"
                f" K={most.k}, below {USELESS}"
            )
        if self.best is None or self.best.speedup is None:
            return "output is the verifier's own, but no speed-up could be measured"
        words = "fits" if self.exit_code == FITS else "fits, but is not faster than no draft"
        best = f"K={self.best.k} is best, {self.best.speedup:.2f}×"
        return f"{words}: output is the verifier's own; {best}"


def checkpoints_of(checkpoint: str, verifier: str | None) -> Checkpoints:
    """The draft and its verifier, read and compared.

    Raises:
        BenchError: they do not fit, or the checkpoint is no draft.
    """
    try:
        found = resolve(None, checkpoint, verifier, None)
    except CheckpointError as error:
        raise BenchError(str(error)) from None
    if found.draft is None:
        raise BenchError(f"{checkpoint} is no draft")
    return found


def trial_ks(found: Checkpoints, asked: Sequence[int]) -> tuple[int, ...]:
    """The K to try: those asked for, else 1, 3 and the largest that the draft allows.

    Raises:
        BenchError: the draft allows no such K.
    """
    assert found.draft is not None
    most = found.draft.max_k
    if above := [k for k in asked if not 1 <= k <= most]:
        raise BenchError(f"--k {above[0]}: block_size {found.draft.block_size} allows 1 ... {most}")
    return tuple(sorted(set(asked) or {1, min(3, most), most}))


async def judge(plan: Plan, checkpoints: Checkpoints, store: Store, progress: ProgressBar) -> Verdict:
    """Measures the draft at every K, then the verifier, which also says which differences are near ties.

    Args:
        plan: one prompt set at one concurrency; its arms are the draft's and, as the last and base, the verifier.
        checkpoints: the draft and its verifier.
        store: where records go.
        progress: shows every stage and request.
    """
    gaps = Gaps(plan, store)
    grid = Grid(plan, store, progress, judge=gaps)
    report = await grid.measure()
    trials = []
    (alone,) = (row for row in report["rows"] if row["arm"] == VERIFIER)
    for cell, row in zip(gaps.drafts, (row for row in report["rows"] if row["arm"] != VERIFIER), strict=True):
        acceptance, equality = row["acceptance"] or {}, row["equality"]
        failures = Counter(row["failures"]) + Counter(alone["failures"])
        trials.append(
            Trial(
                k=row["k"],
                prompts=row["prompts"],
                compared=equality["compared"],
                equal=equality["equal"],
                near_ties=gaps.near_ties(cell, grid.records),
                acceptance_rate=acceptance.get("acceptance_rate"),
                mean_acceptance_length=acceptance.get("mean_acceptance_length"),
                speedup=row["speedup"],
                failures=failures,
                estimate=text.estimate(row),
            )
        )
    return Verdict(checkpoints, tuple(trials))


class Gaps:
    """How near the verifier's two likeliest tokens are where a draft first leaves it; only the verifier's own server is
    asked. Kept in the draft's record with the key of the verifier's, so that it is asked once.
    """

    def __init__(self, plan: Plan, store: Store) -> None:
        self._store = store
        *self.drafts, self._verifier = plan.cells()

    def open(self, records: Records) -> bool:
        """Whether a difference has no gap yet."""
        return any(_UNKNOWN in self._known(cell, records).values() for cell in self.drafts)

    async def __call__(self, target: Target, records: Records) -> None:
        """Asks for every gap that is not known, and keeps it."""
        for cell in self.drafts:
            if cell.slug not in records:
                continue
            gaps = self._known(cell, records)
            for (prompt, position), gap in gaps.items():
                if gap is _UNKNOWN:
                    text = cell.prompts.prompts[prompt]
                    gaps[prompt, position] = await target.top_two_gap(text, cell.sampling, position)
            at = {f"{prompt}:{position}": gap for (prompt, position), gap in gaps.items()}
            records[cell.slug]["gaps"] = {"verifier": records[self._verifier.slug]["key"], "at": at}
            self._store.keep(cell, records[cell.slug])

    def near_ties(self, cell: Cell, records: Records) -> int:
        """Differences of a draft's cell that are rounding."""
        gaps = self._known(cell, records).values()
        return sum(isinstance(gap, float) and gap < NEAR_TIE for gap in gaps)

    def _known(self, cell: Cell, records: Records) -> dict[tuple[int, int], object]:
        """The gap at prompt and token position of each first difference, in logprob: None when the server did not tell,
        `_UNKNOWN` when it was not asked, or another verifier was. Empty where only texts can be compared.
        """
        draft, verifier = records.get(cell.slug), records.get(self._verifier.slug)
        if draft is None or verifier is None:
            return {}
        equality = compare(verifier["outputs"], draft["outputs"])
        kept = draft.get("gaps") or {}
        at = kept["at"] if kept.get("verifier") == verifier["key"] else {}
        return {
            (one.prompt, one.position): at.get(f"{one.prompt}:{one.position}", _UNKNOWN)
            for one in (equality.differences if equality.by == "token_ids" else ())
        }


_UNKNOWN = object()
