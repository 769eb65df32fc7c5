"""`t5gemma2 check`: does this draft fit this verifier, does it leave greedy output alone, does it pay, and at
which K?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.bench.arms import VERIFIER, own_arms
from app.bench.client import Target
from app.bench.equality import compare
from app.bench.errors import BenchError
from app.bench.grid import Plan, Progress, measure
from app.bench.store import Store
from plugin.drafts.checkpoint import CheckpointError, Checkpoints, resolve

FITS, DOES_NOT_FIT, OUTPUT_DIFFERS, NOT_FASTER = 0, 1, 3, 4
"""Exit codes; 2 is wrong usage, as everywhere."""

NEAR_TIE = 0.1
"""A first difference where the verifier's two likeliest tokens are nearer than this in logprob is rounding,
not error: in bfloat16 a batch of 1 + K tokens and a single one need not round alike.
"""


@dataclass(frozen=True, slots=True)
class Trial:
    """What one K gave: `compared` of the `prompts`, for a request may fail with the draft or without;
    `near_ties` of the differences are rounding.
    """

    k: int
    prompts: int
    compared: int
    equal: int
    near_ties: int
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    speedup: float | None

    @property
    def faithful(self) -> bool:
        """Every prompt was answered, and every output is the verifier's own, near ties apart."""
        return 0 < self.prompts == self.compared == self.equal + self.near_ties

    def fault(self) -> str:
        """What is not faithful, in words."""
        failed, other = self.prompts - self.compared, self.compared - self.equal - self.near_ties
        parts = [f"{other} of {self.compared}"] if other else []
        parts += [f"{failed} of {self.prompts} failed"] if failed or not self.prompts else []
        return f"{' and '.join(parts)} at K={self.k}"


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
            told = ", ".join(trial.fault() for trial in wrong)
            if all(trial.equal + trial.near_ties == trial.compared for trial in wrong):
                return f"requests failed: {told}"
            return f"output differs from the verifier's own: {told}"
        if self.best is None or self.best.speedup is None:
            return "output is the verifier's own, but no speed-up could be measured"
        told = f"K={self.best.k} is best, {self.best.speedup:.2f}×"
        words = "fits" if self.exit_code == FITS else "fits, but is not faster than no draft"
        return f"{words}: output is the verifier's own; {told}"


def checkpoints_of(checkpoint: str, verifier: str | None) -> Checkpoints:
    """The draft and its verifier, read and compared; BenchError when they do not fit."""
    try:
        found = resolve(None, checkpoint, verifier, None)
    except CheckpointError as error:
        raise BenchError(str(error)) from None
    if found.draft is None:
        raise BenchError(f"{checkpoint} is no draft")
    return found


def trial_ks(found: Checkpoints, asked: Sequence[int]) -> tuple[int, ...]:
    """The K to try: those asked for, else 1, 3 and the largest that the draft allows."""
    assert found.draft is not None
    most = found.draft.max_k
    if above := [k for k in asked if not 1 <= k <= most]:
        raise BenchError(f"--k {above[0]}: block_size {found.draft.block_size} allows 1 ... {most}")
    return tuple(sorted(set(asked) or {1, min(3, most), most}))


async def check(
    plan: Plan, checkpoint: str, verifier: str | None, ks: Sequence[int], store: Store, progress: Progress
) -> Verdict:
    """Measures the draft at every K, then the verifier, which also says which differences are near ties.

    Args:
        plan: prompts and sampling; its arms are replaced.
        checkpoint: the draft.
        verifier: instead of the one that the draft names, or None.
        ks: draft tokens per step to try.
        store: where records go.
        progress: told of every stage and request.
    """
    names = ",".join([*(f"draft:{k}" for k in ks), VERIFIER])
    plan = replace(plan, arms=tuple(own_arms(names, {"draft": checkpoint}, verifier)), base=VERIFIER)
    gaps = Gaps(plan, store)
    report = await measure(plan, store, progress, judge=gaps)
    trials = [
        Trial(
            k=row["k"],
            prompts=row["prompts"],
            compared=row["equality"]["compared"],
            equal=row["equality"]["equal"],
            near_ties=gaps.near_ties(row["arm"]),
            acceptance_rate=(row["acceptance"] or {}).get("acceptance_rate"),
            mean_acceptance_length=(row["acceptance"] or {}).get("mean_acceptance_length"),
            speedup=row["speedup"],
        )
        for row in report["rows"]
        if row["arm"] != VERIFIER
    ]
    return Verdict(checkpoints_of(checkpoint, verifier), tuple(trials))


class Gaps:
    """How near the verifier's two likeliest tokens are where an arm first leaves it; only the verifier's own
    server is asked. Kept in the arm's record with the key of the verifier's, so that it is asked once.
    """

    def __init__(self, plan: Plan, store: Store) -> None:
        self._plan, self._store = plan, store
        arms = {arm.name: arm for arm in plan.arms}
        (self._base,) = plan.cells(arms.pop(VERIFIER))
        self._cells = {name: cell for name, arm in arms.items() for cell in plan.cells(arm)}

    def open(self, records: Mapping[str, dict[str, Any]]) -> bool:
        """Whether a difference has no gap yet."""
        base = records.get(self._base.slug)
        arms = [records[cell.slug] for cell in self._cells.values() if cell.slug in records]
        return base is not None and any(
            _gap_of(base, arm, at) is _UNKNOWN for arm in arms for at in _first(base, arm)
        )

    async def __call__(self, target: Target, records: Mapping[str, dict[str, Any]]) -> None:
        """Asks for every gap that is not known, and keeps it."""
        base = records[self._base.slug]
        for cell in self._cells.values():
            if (arm := records.get(cell.slug)) is None:
                continue
            known = {}
            for prompt, position in _first(base, arm):
                gap = _gap_of(base, arm, (prompt, position))
                if gap is _UNKNOWN:
                    text = self._plan.sets[0].prompts[prompt]
                    gap = await target.top_two_gap(text, self._plan.sampling, position)
                known[f"{prompt}:{position}"] = gap
            arm["gaps"] = {"verifier": base["key"], "at": known}
            self._store.keep(cell, arm)

    def near_ties(self, arm: str) -> int:
        """Differences of the arm that are rounding, from the records."""
        base, record = self._store.record(self._base), self._store.record(self._cells[arm])
        if base is None or record is None:
            return 0
        gaps = [_gap_of(base, record, at) for at in _first(base, record)]
        return sum(isinstance(gap, float) and gap < NEAR_TIE for gap in gaps)


_UNKNOWN = object()


def _first(base: dict[str, Any], arm: dict[str, Any]) -> list[tuple[int, int]]:
    """Prompt and token position of each first difference; none where only texts can be compared."""
    equality = compare(base["outputs"], arm["outputs"])
    return [(at.prompt, at.position) for at in equality.differences] if equality.by == "token_ids" else []


def _gap_of(base: dict[str, Any], arm: dict[str, Any], at: tuple[int, int]) -> object:
    """The gap kept for a difference in logprob, None when the server did not tell; `_UNKNOWN` when it was not
    asked, or another verifier was.
    """
    kept = arm.get("gaps") or {}
    return kept["at"].get(f"{at[0]}:{at[1]}", _UNKNOWN) if kept.get("verifier") == base["key"] else _UNKNOWN
