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
    """What one K gave; `near_ties` of the differences are rounding."""

    k: int
    compared: int
    equal: int
    near_ties: int
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    speedup: float | None

    @property
    def faithful(self) -> bool:
        """Every output is the verifier's own, near ties apart, and at least one was compared."""
        return self.compared > 0 and self.equal + self.near_ties == self.compared


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
        """0: fits, same output, faster at the best K. 3: other output. 4: not faster at any K."""
        if not all(trial.faithful for trial in self.trials):
            return OUTPUT_DIFFERS
        return FITS if self.best is not None and (self.best.speedup or 0) > 1 else NOT_FASTER

    def conclusion(self) -> str:
        """One line for a person."""
        if self.exit_code == OUTPUT_DIFFERS:
            wrong = [trial for trial in self.trials if not trial.faithful]
            told = ", ".join(
                f"{t.compared - t.equal - t.near_ties} of {t.compared} at K={t.k}" for t in wrong
            )
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
    ties: dict[str, int] = {}

    async def judge(target: Target, records: Mapping[str, dict[str, Any]]) -> None:
        by_arm = {record["arm"]: record["outputs"] for record in records.values()}
        if VERIFIER in by_arm:
            for name, outputs in by_arm.items():
                ties[name] = await _near_ties(plan, target, by_arm[VERIFIER], outputs)

    report = await measure(plan, store, progress, then=judge)
    trials = [
        Trial(
            k=row["k"],
            compared=row["equality"]["compared"],
            equal=row["equality"]["equal"],
            near_ties=ties.get(row["arm"], 0),
            acceptance_rate=(row["acceptance"] or {}).get("acceptance_rate"),
            mean_acceptance_length=(row["acceptance"] or {}).get("mean_acceptance_length"),
            speedup=row["speedup"],
        )
        for row in report["rows"]
        if row["arm"] != VERIFIER
    ]
    return Verdict(checkpoints_of(checkpoint, verifier), tuple(trials))


async def _near_ties(plan: Plan, target: Target, base: dict[str, Any], arm: dict[str, Any]) -> int:
    equality = compare(base, arm)
    if equality.by != "token_ids":
        return 0
    count = 0
    for difference in equality.differences:
        prompt = plan.sets[0].prompts[difference.prompt]
        gap = await target.top_two_gap(prompt, plan.sampling, difference.position)
        count += gap is not None and gap < NEAR_TIE
    return count
