"""Arms run in turns, so that what slows the machine for a while slows all of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass

from benchmarks.engine.process import Arm

SETTLED = 0.03
"""Two rounds in a row that differ by less than this share: warm."""
WARM_UP_ROUNDS = 6
SLOW = "transformers"
SLOW_ROUNDS = 3
"""transformers takes seconds a round: it warms up once and is measured in the first rounds only."""


@dataclass(frozen=True, slots=True)
class Work:
    """`batch` prompts at once, `tokens` new tokens for each."""

    batch: int
    tokens: int


Seconds = dict[Work, dict[str, list[float]]]
"""Wall seconds of every measured round, by work and arm."""


def settled(seconds: Sequence[float]) -> bool:
    """Whether the last two rounds took the same time."""
    return len(seconds) > 1 and abs(seconds[-1] - seconds[-2]) < SETTLED * seconds[-2]


def measure(
    arms: MutableMapping[str, Arm], works: Sequence[Work], rounds: Mapping[int, int], slow: Sequence[Work]
) -> Seconds:
    """Seconds of every work by arm, all arms in turns within a round.

    Args:
        arms: by name; one that gives no answer is told of and taken out.
        works: measured one after the other, each after its own warm-up.
        rounds: measured rounds of a work, by its `tokens`.
        slow: the works that transformers takes part in.
    """
    found: Seconds = {}
    for work in works:
        quick = [name for name in arms if name != SLOW]
        warm: dict[str, list[float]] = {}
        for number in range(WARM_UP_ROUNDS):
            _round(arms, quick if number or work not in slow else list(arms), work, warm)
            if all(settled(warm[name]) for name in quick if name in arms):
                break
        found[work] = {}
        for number in range(rounds[work.tokens]):
            names = quick if work not in slow or number >= SLOW_ROUNDS else [*quick, SLOW]
            _round(arms, names, work, found[work])
    return found


def _round(
    arms: MutableMapping[str, Arm], names: Sequence[str], work: Work, seconds: dict[str, list[float]]
) -> None:
    """One run of each; appends its seconds. Raises `RuntimeError` for an answer of another length."""
    for name in names:
        if name not in arms:
            continue
        try:
            got = arms[name].ask(run=work.batch, tokens=work.tokens)
        except RuntimeError as error:
            print(error, file=sys.stderr, flush=True)
            del arms[name]
            continue
        if got["tokens"] != work.batch * work.tokens:
            raise RuntimeError(f"{name} gave {got['tokens']} tokens for {work}")
        seconds.setdefault(name, []).append(got["seconds"])
