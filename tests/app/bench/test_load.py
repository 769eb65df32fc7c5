"""One cell against a server of known speed, in virtual time: the numbers are exact."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.bench.arms import Arm
from app.bench.cell import Cell, numbers
from app.bench.client import Sampling, Target
from app.bench.errors import BenchError
from app.bench.load import Load, run, warmups
from app.bench.prompts import PLACEHOLDER, PromptSet
from tests.app.bench import virtual_time
from tests.app.bench.scripted import Script, client_of


def measured(
    script: Script, prompts: int = 4, concurrency: int = 1, warmup: int = 8, timeout_s: float = 600.0
) -> dict[str, Any]:
    """The record of a cell against `script`; a request may take `timeout_s`."""
    texts = tuple(f"prompt {'x' * i}" for i in range(prompts))
    cell = Cell(
        Arm("dflash:7", "dflash", 7),
        PromptSet("made", "here", PLACEHOLDER, texts),
        concurrency,
        warmups(warmup, concurrency),
        Sampling(max_tokens=20),
    )

    async def main() -> dict[str, Any]:
        async with client_of(script) as client:
            target = await Target.find(client, texts[0], timeout_s)
            script.bodies.clear()
            load = Load(cell.concurrency, cell.warmup)
            await run(load, target, texts, cell.sampling, lambda: None)
            return await numbers(cell, load, target, target.count_tokens)

    return virtual_time.run(main())


def test_tokens_and_chunks() -> None:
    """8 chunks 100 ms apart, 20 tokens in the usage (F02)."""
    record = measured(Script(delays_s=lambda number: [0.1] * 8, usage=20), prompts=1)
    assert (record["output_tokens"], record["chunks"], record["token_source"]) == (20, 8, "usage")
    assert record["seconds"] == pytest.approx(0.8)
    assert record["output_tokens_per_s"] == pytest.approx(20 / 0.8)
    assert record["itl_ms"] == pytest.approx(dict.fromkeys(("mean", "p50", "p95", "p99"), 100.0))
    assert record["tpot_ms"]["mean"] == pytest.approx(700 / 19)
    assert record["ttft_ms"]["mean"] == pytest.approx(100.0)
    assert record["latency_ms"]["mean"] == pytest.approx(800.0)


def test_tokens_without_usage_are_counted_and_marked() -> None:
    """A server without usage is retokenised and marked; ids, where it gives them, are exact (F02)."""
    script = Script(delays_s=lambda number: [0.1] * 8, tokens_per_chunk=3, usage=None, ids=False)
    record = measured(script, prompts=1)
    assert (record["token_source"], record["output_tokens"]) == ("retokenised", 24)
    record = measured(Script(delays_s=lambda number: [0.1] * 8, tokens_per_chunk=3, usage=None), prompts=1)
    assert (record["token_source"], record["output_tokens"]) == ("token_ids", 24)


def test_tokens_that_nobody_counts_are_unknown() -> None:
    script = Script(usage=None, ids=False, tokenizes=False)
    record = measured(script, prompts=2)
    assert (record["token_source"], record["output_tokens"], record["output_tokens_per_s"]) == (
        None,
        None,
        None,
    )
    assert record["completed"] == 2 and record["tpot_ms"] is None


@pytest.mark.parametrize(("concurrency", "warmup"), [(1, 8), (4, 8), (16, 16)])
def test_warmup_is_in_no_number(concurrency: int, warmup: int) -> None:
    """Warm-ups of 5 s each, then 20 requests of 50 ms; at least as many warm-ups as run at once (F03)."""
    slow = warmup

    def delays(number: int) -> list[float]:
        return [1.25] * 4 if number < slow else [0.0125] * 4

    script = Script(delays_s=delays, k=3, accepted=2)
    record = measured(script, prompts=20, concurrency=concurrency)
    assert record["warmup"] == warmup and len(script.bodies) == warmup + 20
    assert record["latency_ms"] == pytest.approx(dict.fromkeys(("mean", "p50", "p95", "p99"), 50.0))
    rounds = -(-20 // concurrency)
    assert record["seconds"] == pytest.approx(rounds * 0.05)
    assert record["output_tokens"] == 80
    assert record["output_tokens_per_s"] == pytest.approx(80 / (rounds * 0.05))
    assert script.most_at_once == concurrency
    found = record["acceptance"]
    assert (found["drafts"], found["draft_tokens"], found["accepted_tokens"]) == (80, 240, 160)
    assert [position["rate"] for position in found["per_position"]] == [1.0, 1.0, 0.0]


def test_every_request_is_greedy_and_seeded() -> None:
    script = Script()
    measured(script, prompts=3)
    for body in script.bodies:
        assert (body["temperature"], body["seed"], body["max_tokens"], body["stream"]) == (0, 0, 20, True)
        assert body["stream_options"] == {"include_usage": True} and body["return_token_ids"] is True
    assert [body["prompt"] for body in script.bodies[8:]] == ["prompt ", "prompt x", "prompt xx"]


def test_a_server_that_knows_no_token_ids_is_asked_without() -> None:
    script = Script(knows_ids=False)
    record = measured(script, prompts=2)
    assert not [body for body in script.bodies if "return_token_ids" in body]
    texts = [" 107 108 109 110", " 108 109 110 111"]
    assert record["outputs"] == {"token_ids": None, "texts": texts}


def test_failures_are_counted_and_in_no_number() -> None:
    def refuse(prompt: str) -> str | None:
        return "too long:\nsay less" if prompt.endswith("xx") else None

    record = measured(Script(delays_s=lambda number: [0.1, 0.1], refuse=refuse), prompts=4)
    assert (record["completed"], record["failed"], record["failures"]) == (2, 2, {"HTTP 400": 2})
    assert record["errors"] == ["400: too long: say less"]
    assert record["output_tokens"] == 4
    assert [ids is None for ids in record["outputs"]["token_ids"]] == [False, False, True, True]


def test_a_cut_stream_is_a_failure() -> None:
    with pytest.raises(BenchError, match=r"http://server/v1/completions: the stream ended without \[DONE\]"):
        measured(Script(cut=True))


def test_a_server_that_refuses_everything_ends_the_run() -> None:
    with pytest.raises(BenchError, match="400: closed today"):
        measured(Script(refuse=lambda prompt: "closed today"))


def test_a_server_without_tokens() -> None:
    """An arm that puts out nothing after its warm-up has failed requests, no tokens and no times (F06)."""
    script = Script(delays_s=lambda number: [0.1] if number < 8 else [], k=1)
    record = measured(script, prompts=3)
    assert (record["completed"], record["failed"], record["output_tokens"]) == (0, 3, 0)
    assert record["errors"] == ["the stream had no output"]
    assert not record["output_tokens_per_s"] and record["itl_ms"] is None
    assert record["acceptance"]["drafts"] == 0 and record["acceptance"]["acceptance_rate"] is None


def test_interrupted_cell_is_partial() -> None:
    """What was answered until the interruption is kept, and marked."""
    script = Script(delays_s=lambda number: [0.5, 0.5])
    texts = tuple(f"p{i}" for i in range(10))
    cell = Cell(Arm("verifier"), PromptSet("made", "here", PLACEHOLDER, texts), 1, 8, Sampling())

    async def main() -> dict[str, Any]:
        async with client_of(script) as client:
            target = await Target.find(client, texts[0])
            load = Load(1, 8)
            task = asyncio.create_task(run(load, target, texts, cell.sampling, lambda: None))
            await asyncio.sleep(8 + 0.1 + 3.2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return await numbers(cell, load, target, target.count_tokens)

    record = virtual_time.run(main())
    assert (record["partial"], record["completed"], record["prompts"]) == (True, 3, 10)
    assert record["seconds"] == pytest.approx(3.0) and record["acceptance"] is None
