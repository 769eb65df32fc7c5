"""What a server says of its draft's worth, in records and tables; and baselines measured on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.bench.arms import Arm
from app.bench.client import Sampling, Target
from app.bench.counters import Reading, acceptance_between, read
from app.bench.errors import BenchError
from app.bench.report import text
from app.bench.worth import estimate, measured_arms, store_baseline
from app.drafts.ledger import Counts
from tests.app.bench.virtual_time import run
from tests.app.conftest import served
from tests.app.fake_engine import FakeEngine


async def with_gateway(engine: FakeEngine, work: Any, **settings: Any) -> Any:
    """What `work(target)` gives of our own gateway over a fake engine."""
    async with served(engine, **settings) as client:
        return await work(Target(client, "demo", True))


def fake() -> FakeEngine:
    return FakeEngine(k=3, per_step=3, seconds=lambda k: 0.01 + 0.002 * k)


@pytest.mark.anyio
async def test_the_estimate_stands_in_the_record() -> None:
    async def work(target: Target) -> Any:
        for _ in range(12):
            await target.complete("Hi", Sampling(256, ignore_eos=True))
        return await estimate(target)

    found = await with_gateway(fake(), work)
    assert found["speedup"]["origin"] == "live" and found["recommended_k"] is not None
    assert text.estimate({"estimate": found}) == found["speedup"]["overall"]
    assert text.estimate({"estimate": {"speedup": None}}) is text.estimate({"estimate": None}) is None
    assert text.estimate({}) is None


def test_a_server_that_says_nothing() -> None:
    async def main() -> Any:
        transport = httpx.MockTransport(lambda request: httpx.Response(404))
        async with httpx.AsyncClient(transport=transport, base_url="http://s") as client:
            return await estimate(Target(client, "m", True))

    assert run(main()) is None


@pytest.mark.anyio
async def test_a_baseline_is_measured_without_a_draft(tmp_path: Path) -> None:
    engine = fake()

    async def work(target: Target) -> Path:
        drafting = target.client._transport.app.state.gateway.drafting  # type: ignore[attr-defined]
        drafting.baseline_key = {"dtype": "float32"}
        return await store_baseline(target, ["Hi"] * 40, Sampling(16), (1,), 1, tmp_path)

    path = await with_gateway(engine, work, allow_switch=True)
    assert engine.lengths[:2] == [3, 0]
    content = json.loads(path.read_text())
    assert content["key"] == {"dtype": "float32"}
    assert [(step["batch"], step["step_seconds"]) for step in content["steps"]] == [(1, 0.01)]
    with pytest.raises(BenchError, match="403"):
        await with_gateway(fake(), work)


def test_one_server_for_each_draft() -> None:
    def arm(name: str, draft: str, **settings: str) -> Arm:
        return Arm(name, "dflash", 3, None, tuple({"DRAFT": draft, **settings}.items()))

    plain = Arm("verifier", settings=(("DRAFT", "none"),))
    a, again, short, b = (
        arm("a", "x"),
        arm("a:1", "x"),
        arm("a:short", "x", SHORT_BLOCK="true"),
        arm("b", "y"),
    )
    elsewhere = Arm("c", "dflash", 3, "http://s")
    assert measured_arms([plain, short, a, again, b, elsewhere]) == [a, b]


@pytest.mark.anyio
async def test_counters_by_k() -> None:
    """Of our own gateway: one K has its own positions, several stand apart."""

    async def work(target: Target) -> list[Any]:
        readings: list[Reading | None] = [await read(target.client)]
        for _ in range(2):
            await target.complete("Hi", Sampling(9))
            readings.append(await read(target.client))
            await target.client.post("/drafts/k", json={"k": 2})
        return [
            acceptance_between(a, b)
            for a, b in ((0, 1), (1, 2), (0, 2))
            for a, b in [(readings[a], readings[b])]
        ]

    engine = FakeEngine(k=7, per_step=3)
    first, second, both = await with_gateway(engine, work, allow_switch=True)
    assert [len(found["per_position"]) for found in (first, second)] == [7, 2]
    assert (first["acceptance_rate"], second["acceptance_rate"]) == (2 / 7, 1.0)
    assert [entry["k"] for entry in both["by_k"]] == [2, 7] and both["per_position"] == []


def test_one_k_of_a_longer_engine() -> None:
    """vLLM's series have a place for every position of the block; those that were never proposed have no rate."""
    before = Reading("/metrics", Counts(7, 0, 0, 0), {})
    mine = Counts(3, 5, 15, 6, accepted=[4, 2, 0])
    after = Reading("/metrics", Counts(7, 5, 15, 6, accepted=[4, 2, 0, 0, 0, 0, 0]), {3: mine})
    found = acceptance_between(before, after)
    assert found is not None and [position["rate"] for position in found["per_position"]] == [0.8, 0.4, 0.0]
