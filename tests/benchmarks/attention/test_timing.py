"""The order in which alternatives are timed, on a device that only counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.attention import timing


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The alternatives in the order of their replays; a replay takes the more milliseconds the later it comes."""
    order: list[str] = []

    class Event:
        def __init__(self, **_: Any) -> None:
            self.at = 0

        def record(self) -> None:
            self.at = sum(range(1, len(order) + 1))

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, end: Any) -> float:
            return float(end.at - self.at)

    def captured(calls: Any) -> Any:
        return SimpleNamespace(replay=lambda: order.append(calls[0]()))

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(timing, "_captured", captured)
    return order


def test_alternatives_take_turns_and_the_first_turn_is_not_counted(replayed: list[str]) -> None:
    chosen, other = [lambda: "chosen"] * 2, [lambda: "other"]
    assert timing.graphs_us([chosen, other], replays=3) == [5 * 1000 / 2, 6 * 1000]
    assert replayed == ["chosen", "other"] * 4


def test_one_alone_is_the_median_of_its_replays(replayed: list[str]) -> None:
    assert timing.graph_us([lambda: "only"], replays=5) == 4 * 1000
