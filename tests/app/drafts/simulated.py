"""A simulated engine for the controller of K: step times and acceptance by formula, with noise, and no clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.drafts.controller import Controller
from app.drafts.estimate import Estimator
from plugin.drafts.steps import StepStats

MAX_K = 7
PAUSES = 1.02
"""One step in a hundred lasts three times as long."""


@dataclass(frozen=True)
class Phase:
    """So many tokens at an acceptance: `rates[i]` is the chance at position i, given that all before were accepted."""

    tokens: int
    rates: Sequence[float]
    batch: int = 1


def step_s(k: int, batch: int, pass_s: float = 0.5, token_s: float = 0.03) -> float:
    """A step without a draft lasts 1; a draft adds its pass, and each token to verify a little for each sequence."""
    return 1 + 0.02 * batch + (pass_s if k else 0) + token_s * k * batch


@dataclass
class Run:
    """What a run of phases took: `seconds`, and how often K was changed."""

    seconds: float = 0.0
    steps: int = 0
    changes: int = 0


def run(
    phases: Sequence[Phase],
    k: int,
    auto: bool = False,
    seed: int = 0,
    noise: float = 0.1,
    share: float = 0.0,
    duration: Callable[[int, int], float] = step_s,
    floor: int = 0,
    ceiling: int | None = None,
    lag: int = 1,
) -> tuple[Run, Controller]:
    """Serves the phases, each to its last token. A change of K takes effect `lag` steps later; drafts are verified in
    the step after the one that made them, and neither that step nor the one before says how long steps last.
    """
    chance = random.Random(seed)
    estimator, result = Estimator(range(MAX_K + 1), lambda: result.seconds), Run()

    def changed(old: int, new: int, why: str) -> None:
        result.changes += 1

    controller = Controller(estimator, k, auto, floor, ceiling, share, changed)
    told, drafted = [k] * (lag + 1), k
    for phase in phases:
        left = phase.tokens
        while left > 0:
            now = told.pop(0)
            lasted = duration(now, phase.batch) * max(0.2, chance.gauss(1, noise))
            lasted *= 3 if chance.random() < 0.01 else 1
            accepted = [0] * drafted
            for _ in range(phase.batch):
                left -= 1
                for i in range(drafted):
                    if chance.random() >= phase.rates[i]:
                        break
                    accepted[i] += 1
                    left -= 1
            drafts = {drafted: (phase.batch, tuple(accepted))} if drafted else {}
            steady = drafted == now and told[0] == now
            step = StepStats(now, phase.batch, lasted if steady else None, drafts)
            result.seconds += lasted
            result.steps += 1
            estimator.add(step)
            controller.step(step)
            drafted = now
            told.append(controller.wanted)
    return result, controller


def fixed_s(phases: Sequence[Phase], k: int, duration: Callable[[int, int], float] = step_s) -> float:
    """What the phases take at a fixed K, on average."""
    seconds = 0.0
    for phase in phases:
        length, reached = 1.0, 1.0
        for rate in phase.rates[:k]:
            reached *= rate
            length += reached
        seconds += phase.tokens / phase.batch / length * duration(k, phase.batch) * PAUSES
    return seconds


def best_fixed(phases: Sequence[Phase]) -> int:
    """The fastest fixed K."""
    return min(range(MAX_K + 1), key=lambda k: fixed_s(phases, k))
