"""The word problems: reproducible, correct, and split by their text."""

from __future__ import annotations

import random
import re
from fractions import Fraction

from plugin.training.data.problems.generate import PUBLISHED_QUESTIONS, generate, split_of, take, tell
from plugin.training.data.problems.kinds import KINDS

EQUATION = re.compile(r"(\d+(?: [-+*/] \d+)+) = (\d+)")

# Every kind's result from its drawn numbers, written anew.
RESULTS = {
    "speed": lambda f: Fraction(f["distance"], f["time"]),
    "distance": lambda f: f["speed"] * f["time"],
    "duration": lambda f: Fraction(f["distance"], f["speed"]),
    "total": lambda f: f["count"] * f["price"],
    "change": lambda f: f["paid"] - f["count"] * f["price"],
    "basket": lambda f: f["count"] * f["price"] + f["count2"] * f["price2"],
    "age": lambda f: f["age"] + f["gap"] + f["years"],
    "times as old": lambda f: f["age"] * (1 + f["times"]),
    "sharing": lambda f: Fraction(f["count"], f["friends"]),
    "left over": lambda f: f["count"] - f["friends"] * f["each"],
    "discount": lambda f: Fraction(f["price"] * (100 - f["percent"]), 100),
    "minutes": lambda f: f["minutes"] * f["count"],
    "perimeter": lambda f: f["long"] + f["wide"] + f["long"] + f["wide"],
    "area": lambda f: f["long"] * f["wide"],
    "output": lambda f: f["rate"] * f["hours"] * f["days"],
    "reading": lambda f: Fraction(f["pages"], f["daily"]),
    "collection": lambda f: f["start"] + f["more"] - f["fewer"],
    "saving": lambda f: f["start"] + f["weekly"] * f["weeks"],
    "part": lambda f: f["count"] - Fraction(f["count"], f["part"]),
}


def _value(expression: str) -> Fraction:
    """A chain of whole numbers and operators, * and / before + and -."""
    total, sign = Fraction(0), 1
    for term in re.split(r" ([-+]) ", expression):
        if term in ("+", "-"):
            sign = 1 if term == "+" else -1
            continue
        first, *rest = re.split(r" ([*/]) ", term)
        value = Fraction(int(first))
        for operator, number in zip(rest[::2], rest[1::2], strict=True):
            value = value * int(number) if operator == "*" else value / int(number)
        total += sign * value
    return total


def test_the_same_seed_gives_the_same_problems() -> None:
    assert take(7, "train", 200) == take(7, "train", 200)
    assert take(7, "train", 200) != take(8, "train", 200)


def test_every_step_and_every_result_is_right() -> None:
    for problem in [*take(1, "train", 3000), *take(2, "fresh", 100)]:
        equations = EQUATION.findall(problem.answer)
        assert equations, problem
        for left, right in equations:
            assert _value(left) == int(right), problem
        assert int(equations[-1][1]) == problem.result, problem
        assert RESULTS[problem.kind](problem.fields) == problem.result, problem
        assert int(re.findall(r"\d+", problem.answer)[-1]) == problem.result, problem
        assert problem.result >= 0


def test_there_are_many_kinds_with_several_wordings_and_all_come_up() -> None:
    assert set(RESULTS) == {kind.name for kind in KINDS}
    assert len(KINDS) >= 10
    assert all(len(kind.questions) >= 2 and len(kind.answers) >= 2 for kind in KINDS)
    problems = take(3, "train", 3000)
    assert {problem.kind for problem in problems} == set(RESULTS)
    openings = {problem.answer.split(".")[0] for problem in problems if problem.kind == "total"}
    assert len(openings) > 20


def test_question_numbers_stand_in_the_question() -> None:
    for problem in take(4, "train", 1000):
        assert "{" not in problem.question + problem.answer
        assert re.search(r"\d", problem.question)


def test_the_published_question_can_be_drawn_but_never_for_training() -> None:
    kind = next(kind for kind in KINDS if kind.name == "speed")
    fields = {"who": "train", "length": "miles", "time": 2, "speed": 30, "distance": 60, "result": 30}
    problem = tell(kind, fields, wording=0)
    assert {problem.question} == PUBLISHED_QUESTIONS
    assert split_of(problem.question) == "fresh"
    assert "60 / 2 = 30" in problem.answer
    rng = random.Random(0)
    assert any(dict(kind.draw(rng)) == fields for _ in range(20_000))


def test_training_and_fresh_questions_never_meet() -> None:
    train = {problem.question for problem in take(0, "train", 5000)}
    fresh = {problem.question for problem in take(0, "fresh", 200)}
    assert not train & fresh
    assert next(generate(0, "train")).question in train
