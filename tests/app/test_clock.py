"""A clock that is set while the server runs: durations and deadlines are of the monotonic one."""

from __future__ import annotations

import ast
import time
from itertools import cycle

import pytest

from tests.app.conftest import complete, served
from tests.app.fake_engine import FakeEngine
from tests.test_architecture import ROOT, SOURCES

DAY = 86_400.0
STAMPS = {"app/completions/answer.py", "app/routes/models.py", "app/drafts/baseline.py"}
"""Where the time of day is meant: `created` of answers and models, and of a baseline in a file, never of the future."""


@pytest.mark.anyio
async def test_a_clock_that_jumps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A day to and fro at each look: nobody's deadline passes, and rates and ages stay what they are."""
    real, jumps = time.time, cycle((DAY, -DAY, 0.0))
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    engine = FakeEngine(k=3, per_step=4, delay_s=0.002, seconds=lambda k: 0.01 * (1 + k))
    async with served(engine, request_timeout_s=5, hang_timeout_s=5, baseline_share=0) as client:
        for _ in range(3):
            reply = (await complete(client, max_tokens=40)).json()
            assert 0 < reply["metrics"]["time_to_first_token_ms"] < 1_000, reply
        stats = (await client.get("/drafts/stats")).json()
        assert stats["window"]["drafts"] == stats["lifetime"]["drafts"] == 30
        told = (await client.get("/ready")).json()
        assert told["status"] == "ok" and 0 <= told["seconds"] < 10


def test_the_time_of_day_is_read_for_stamps_alone() -> None:
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "time.time":
                found.add(path.relative_to(ROOT).as_posix())
    assert found == STAMPS
