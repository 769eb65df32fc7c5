"""Offered load at two and at five times the capacity of a fake engine that, as a real one, runs so many at a time."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncGenerator

import httpx
import pytest

from app.engine import GenerateRequest, Step
from benchmarks.soak.overload import BODY, TOKENS, Offered, Overloaded, Round, overload
from tests.app.bench import virtual_time
from tests.app.conftest import build
from tests.app.fake_engine import FakeEngine

BATCH, QUEUE = 4, 8


class Limited(FakeEngine):
    """Runs `BATCH` requests at a time; each takes 0.2 to 0.3 s."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.batch = asyncio.Semaphore(BATCH)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Step, None]:
        async with self.batch:
            await asyncio.sleep(0.2 + len(self.seen) % 5 * 0.025)
            async for step in super().generate(request):
                yield step


def test_overload(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goodput stays, refusals come at once with 503 and `Retry-After`, what is accepted ends in a queue's time."""
    # Nothing waits for a thread, whose time would not be the loop's: no text is tokenized, no engine loaded.
    monkeypatch.setitem(BODY, "prompt", [2, 70, 71])

    async def run() -> Overloaded:
        engine = Limited(per_step=100)
        app = build(engine, max_num_seqs=BATCH, max_queued_requests=QUEUE)
        app.state.gateway.phase, app.state.gateway._engine = "ready", engine
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await overload(client, BATCH + QUEUE, 30, seconds=10)

    found = virtual_time.run(run())
    checks = found.all_checks()
    assert len(checks) == 12 and all(check.right for check in checks), [
        c.words for c in checks if not c.right
    ]
    twice, five = found.rounds
    full = [one.before.goodput for one in (*twice, *five)]
    assert full == pytest.approx([BATCH / 0.25 * statistics.fmean(TOKENS)] * 6, rel=0.15)
    for one in five:
        assert one.offered.statuses[503] > 3 * one.offered.statuses[200]
        assert max(one.offered.refusals) < 0.01


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"tokens_in_time": 8000}, "goodput"),
        ({"statuses": {200: 400, 503: 400, 500: 1}}, "neither"),
        ({"statuses": {200: 400}}, "refused"),
        ({"without_retry_after": 1}, "Retry-After"),
        ({"latencies": [1.2]}, "a full queue's"),
    ],
)
def test_what_is_wrong_is_found(change: dict[str, object], name: str) -> None:
    """The goodput in most of the rounds, all else in any."""
    full = Offered(0, 10, tokens_in_time=20_000)
    good = {"statuses": {200: 400, 503: 400}, "latencies": [0.5], "tokens_in_time": 19_000}

    def of(**fields: object) -> Round:
        one = Offered(80, 10)
        for field, value in fields.items():
            getattr(one, field).update(value) if isinstance(value, dict) else setattr(one, field, value)
        return Round(full, one, full)

    wrong = [of(**{**good, **change})] * (3 if name == "refused" else 2)
    found = Overloaded(20, 30, [[of(**good)] * 3, [*wrong, of(**good)][:3]])
    (check,) = [check for check in found.all_checks() if not check.right]
    assert check.name.startswith("at 5 times") and name in check.name
