"""Rates between two looks, and their line."""

from __future__ import annotations

from typing import Any

import pytest

from app.drafts.report import Stats
from app.top.history import KEPT, History, sparkline
from app.top.server import Look
from tests.app.top.stub import acceptance, stats


def look(generated: int | None, lifetime: Any = None, k: int = 3) -> Look:
    engine = {} if generated is None else {"generated_tokens": generated}
    told = None if lifetime is None else Stats.model_validate(stats(lifetime, k=k, asked=k))
    return Look("ready", stats=told, engine=engine)


def history(*looks: Look, every_s: float = 2.0) -> History:
    times = iter(every_s * i for i in range(len(looks)))
    found = History(lambda: next(times))
    for each in looks:
        found.add(each)
    return found


def test_tokens_a_second() -> None:
    """Unknown where a look has no count, and where the server was started anew."""
    found = history(look(100), look(300), look(None), look(400), look(5), look(5))
    assert list(found.tokens) == [100.0, None, None, None, 0.0]


def test_acceptance_of_the_interval() -> None:
    """Not of all time; unknown without drafts, and when K has changed in between."""
    first, second = acceptance(100, 0.9, 0.5, 0.1), acceptance(200, 0.9, 0.7, 0.5)
    at_first = acceptance(100, 0.5)
    found = history(
        look(0, first), look(0, second), look(0, second), look(0, at_first, k=1), look(0, first), look(0)
    )
    gained = second["accepted_tokens"] - first["accepted_tokens"]
    assert list(found.acceptance) == [pytest.approx(gained / 300), None, None, None, None]


def test_it_forgets() -> None:
    found = history(*(look(i) for i in range(KEPT + 10)))
    assert len(found.tokens) == KEPT and found.tokens[-1] == 0.5


def test_sparkline() -> None:
    assert sparkline([0.0, 1.0, 2.0, 4.0, None, 8.0], 10) == "▁▁▂▄ █"
    assert sparkline([0.5, 1.0, 2.0], 2) == "▄█"
    assert sparkline([0.5], 9, top=1.0) == "▄" and sparkline([3.0], 9, top=1.0) == "█"
    assert sparkline([0.0, None], 9) == "▁ " and sparkline([], 9) == sparkline([1.0], 0) == ""
