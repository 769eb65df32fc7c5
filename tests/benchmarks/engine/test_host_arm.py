"""Which steps of an engine are measured, with an engine that only counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.engine.host_arm import WARM_STEPS, decode_steps

TOKENS = 40
IDLE = 15
"""A call within the measured ones that gives nothing."""


class Engine:
    """Two requests, of which the second is admitted two steps later and is twice as quick; each ends at `TOKENS`."""

    def __init__(self, queued: int) -> None:
        self.left = {"slow": TOKENS, "quick": TOKENS}
        self.queued = queued
        self.calls = 0

    def step(self) -> list[Any]:
        self.calls += 1
        if self.calls <= self.queued or self.calls == IDLE:  # a batch queue that fills up has no output
            return []
        outputs = []
        for name, tokens in (("slow", 1), ("quick", 2)):
            if name == "quick" and self.calls <= self.queued + 2:
                continue
            tokens = min(tokens, self.left[name])
            self.left[name] -= tokens
            if tokens:
                outputs.append(
                    SimpleNamespace(request_id=name, outputs=[SimpleNamespace(token_ids=[7] * tokens)])
                )
        return outputs

    def has_unfinished_requests(self) -> bool:
        return any(self.left.values())


@pytest.mark.parametrize("queued", [0, 1])
def test_steps_that_admit_and_steps_that_end_a_request_are_left_out(queued: int) -> None:
    engine = Engine(queued)
    seen = []

    @contextmanager
    def around() -> Iterator[None]:
        seen.append(dict(engine.left))
        yield
        seen.append(dict(engine.left))

    steps, seconds = decode_steps(engine, ["slow", "quick"], TOKENS - 6, around())
    before, after = seen
    # Three steps until both have a token, and those that warm up.
    assert before == {"slow": TOKENS - 3 - WARM_STEPS, "quick": TOKENS - 2 - 2 * WARM_STEPS}
    # The first that had more than 34 tokens had 36, four from its end.
    assert after["quick"] == 4
    assert steps == before["slow"] - after["slow"] == 13
    assert seconds > 0
    assert not engine.has_unfinished_requests()


def test_requests_that_are_too_short_are_told() -> None:
    from contextlib import nullcontext

    engine = Engine(0)
    with pytest.raises(ValueError, match="too short"):
        decode_steps(engine, ["slow", "quick"], 5, nullcontext())
    assert not engine.has_unfinished_requests()
