"""Short word problems with worked answers: the data on which the demo verifier and its drafts are trained.

    >>> from plugin.training.data.problems.generate import generate
    >>> problem = next(generate(seed=0, split="train"))

Everything follows from the seed. About one question in twenty (by a checksum of its text) and every published example
question belong to the split "fresh" and are never generated for training, so a figure measured on "fresh" is measured
on questions the models have not seen.
"""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from plugin.training.data.problems import words
from plugin.training.data.problems.draws import Fields
from plugin.training.data.problems.kinds import KINDS, Kind

Split = Literal["train", "fresh"]

PUBLISHED_QUESTIONS: Final = frozenset({"A train travels 60 miles in 2 hours. What is its average speed?"})
FRESH_ONE_IN: Final = 20

WRAPPINGS: Final = (
    "{}",
    "Solve the problem step by step.\n\nQuestion: {}\nAnswer:",
    "Solve step by step.\n\nQuestion: {}\nAnswer:",
)
"""How a question is asked: bare, and as the two published benchmarks ask it."""

_WHO: Final = (words.NAMES, words.VEHICLES, words.PLACES, words.MACHINES)


@dataclass(frozen=True, slots=True)
class Problem:
    """A question, its worked answer, and the number that the answer must end on."""

    kind: str
    question: str
    answer: str
    result: int
    fields: Fields


def split_of(question: str) -> Split:
    """The split that a question belongs to; a property of its text alone."""
    fresh = question in PUBLISHED_QUESTIONS or zlib.crc32(question.encode()) % FRESH_ONE_IN == 0
    return "fresh" if fresh else "train"


def tell(kind: Kind, fields: Fields, wording: int) -> Problem:
    """The problem of `kind` over `fields` in question wording number `wording`.

    The answer's wording follows from the subject's place in its list and from the question's wording, the opening
    sentence (or its absence) from that place: the question alone decides both, so the verifier can learn them, while
    a draft, which never sees the question, has to read them off the verifier's hidden states.
    """
    question = kind.questions[wording].format(**fields)
    who = str(fields["who"])
    place = next(group.index(who) for group in _WHO if who in group)
    body = kind.answers[(place + wording) % len(kind.answers)].format(**fields)
    body = body[0].upper() + body[1:]
    opener = words.OPENERS[place % len(words.OPENERS)] if place % 3 != 0 else ""
    answer = f"{opener} {body}".strip()
    return Problem(kind.name, question, answer, int(fields["result"]), fields)


def generate(seed: int, split: Split) -> Iterator[Problem]:
    """Endless problems of `split`, the same ones for the same seed on every machine."""
    rng = random.Random(seed)
    while True:
        kind = rng.choice(KINDS)
        problem = tell(kind, kind.draw(rng), rng.randrange(len(kind.questions)))
        if split_of(problem.question) == split:
            yield problem


def wrapped(question: str, number: int) -> str:
    """The question as problem `number` of a data set asks it: in every wrapping in turn."""
    return WRAPPINGS[number % len(WRAPPINGS)].format(question)


def take(seed: int, split: Split, count: int) -> list[Problem]:
    """The first `count` problems of `generate(seed, split)`."""
    return list(itertools.islice(generate(seed, split), count))
