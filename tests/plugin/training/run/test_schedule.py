"""The learning rate by step, by hand."""

from __future__ import annotations

import math

import pytest

from plugin.training.run.schedule import learning_rate
from plugin.training.settings import Schedule


@pytest.mark.parametrize(
    ("shape", "left"),
    [
        ("linear", [1.0, 0.75, 0.5, 0.25]),
        ("cosine", [1.0, 0.5 + 0.5 * math.cos(math.pi / 4), 0.5, 0.5 + 0.5 * math.cos(3 * math.pi / 4)]),
        ("none", [1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_a_warm_up_and_what_follows(shape: Schedule, left: list[float]) -> None:
    """Six steps, of which a third or two warm up."""
    for warmup, steps in ((1 / 3, None), (0.0, 2), (0.9, 2)):
        rates = [learning_rate(step, 6, 2.0, warmup, shape, steps) for step in range(6)]
        assert rates == pytest.approx([1.0, 2.0, *(2 * share for share in left)])


def test_a_warm_up_longer_than_the_run_never_ends() -> None:
    assert [learning_rate(step, 2, 1.0, 0.0, "linear", 4) for step in range(2)] == [0.25, 0.5]
