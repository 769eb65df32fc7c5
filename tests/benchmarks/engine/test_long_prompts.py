"""The measurement of long prompts on an engine that only keeps time."""

from __future__ import annotations

import asyncio
import itertools
from argparse import Namespace
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from benchmarks.engine import long_prompts
from benchmarks.engine.long_prompts import Engine, Gaps, engine_arguments, measure


class FakeEngine(Engine):
    """A chunk every two milliseconds; a prompt that it had takes a quarter of the time of a new one."""

    def __init__(self) -> None:
        super().__init__(None, 0)
        self.seen: set[tuple[int, ...]] = set()

    async def chunks(self, prompt: list[int], tokens: int) -> AsyncIterator[float]:
        new = tuple(prompt) not in self.seen
        self.seen.add(tuple(prompt))
        await asyncio.sleep(0.02 if new else 0.005)
        for _ in range(tokens):
            await asyncio.sleep(0.002)
            yield asyncio.get_running_loop().time()

    async def peak_bytes(self) -> int:
        return 7


def test_gaps_are_between_the_chunks_of_one_stream() -> None:
    gaps = Gaps.of([[0.0, 1.0, 2.0, 5.0], [0.5, 1.5]], 2)
    assert (gaps.median, gaps.worst, gaps.prompts) == (1.0, 3.0, 2)


def test_every_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        long_prompts, "time", Namespace(perf_counter=lambda: asyncio.get_running_loop().time())
    )
    args = Namespace(lengths=[64, 128], rounds=3, limit=256, long=128, seconds=0.5)
    monkeypatch.setattr(long_prompts, "EVERY_S", 0.1)
    figures, details = asyncio.run(measure(FakeEngine(), args))
    assert set(figures) == {
        "ttft_hit_over_miss_64",
        "ttft_hit_over_miss_128",
        "limit_prompt_s",
        "worst_gap_over_median_alone",
        "worst_gap_over_median_beside_long_prompts",
    }
    assert figures["ttft_hit_over_miss_64"] < 0.8
    assert details["gaps"]["beside_long_prompts"]["prompts"] == 5
    assert details["limit"]["peak_bytes"] == 7


def test_prompts_are_new_and_the_engine_takes_the_longest() -> None:
    engine = FakeEngine()
    prompts = [tuple(engine.prompt(9)) for _ in range(50)]
    assert len(set(prompts)) == 50 and {len(p) for p in prompts} == {9}
    args = Namespace(
        lengths=[2048], limit=32_768, long=8192, model=None, kv_bytes=1, enforce_eager=False, step_tokens=512
    )
    made = engine_arguments(args, Path("shape"))
    assert made["max_num_batched_tokens"] == made["hf_overrides"]["max_source_positions"] == 32_768
    assert made["load_format"] == "dummy"
    assert all(0 <= i < 768 for i in itertools.chain(*prompts))  # the demo's vocabulary
