"""The kinds of word problem, read from `kinds.toml` beside this file, where their wordings stand."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from plugin.training.data.problems.draws import DRAWS, Fields


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of problem, as `kinds.toml` describes it; `questions` and `answers` are format strings."""

    name: str
    draws: str
    questions: Sequence[str]
    answers: Sequence[str]
    result: str = "result"

    def draw(self, rng: random.Random) -> Fields:
        """The fields of one problem; `result` among them is the number asked for."""
        fields = DRAWS[self.draws](rng)
        return {**fields, "result": fields[self.result]}


KINDS: Final = tuple(
    Kind(**table)
    for table in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["kind"]
)
