"""What one kind of word problem is made of."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Fields = Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of problem.

    `draw(rng)` gives the fields; `result` among them is the number asked for and `who` the word whose place in its
    list chooses the wording. `questions` and `answers` are format strings over the fields.
    """

    name: str
    draw: Callable[[random.Random], Fields]
    questions: tuple[str, ...]
    answers: tuple[str, ...]
