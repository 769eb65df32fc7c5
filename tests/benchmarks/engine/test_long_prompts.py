"""The measurement of long prompts on an engine that only keeps time."""

from __future__ import annotations

import asyncio
import itertools
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.engine import gaps, long_prompts
from benchmarks.engine.long_prompts import engine_arguments, measure
from tests.benchmarks.engine.timed_engine import TimedEngine

GAPS = {
    f"worst_gap_over_median_{name}"
    for name in ("alone", "beside_short_prompts", "beside_held_prompts", "beside_long_prompts")
}


@pytest.fixture
def args(monkeypatch: pytest.MonkeyPatch) -> Namespace:
    for module in (long_prompts, gaps):
        clock = Namespace(perf_counter=lambda: asyncio.get_running_loop().time())
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(gaps, "EVERY_S", 0.1)
    return Namespace(
        lengths=[64, 128], rounds=3, limit=256, long=128, seconds=0.3, gap_rounds=2, step_tokens=[32],
        only_gaps=False,
    )  # fmt: skip


def test_every_figure(args: Namespace) -> None:
    figures, details = asyncio.run(measure(TimedEngine(), args))
    assert set(figures) == GAPS | {"ttft_hit_over_miss_64", "ttft_hit_over_miss_128", "limit_prompt_s"}
    assert figures["ttft_hit_over_miss_64"] < 0.8
    assert details["limit"]["peak_bytes"] == 7
    rounds = details["gaps"]["32"]
    assert [len(one["first_tokens"]) for one in rounds["beside_long_prompts"]] == [3, 3]
    assert [len(one["first_tokens"]) for one in rounds["alone"]] == [0, 0]


def test_bounds_take_turns_and_the_first_ones_are_the_figures(args: Namespace) -> None:
    engine = TimedEngine()
    args.step_tokens, args.only_gaps = [32, 64], True
    figures, details = asyncio.run(measure(engine, args))
    assert engine.bounds == [32, 64, 32, 64]
    assert set(figures) == GAPS and set(details["gaps"]) == {"32", "64"}
    name = "beside_long_prompts"
    least = min(one["client"]["worst"] / one["client"]["median"] for one in details["gaps"]["32"][name])
    assert figures[f"worst_gap_over_median_{name}"] == least


def test_an_engine_whose_bound_cannot_be_changed_is_said_so(args: Namespace) -> None:
    args.step_tokens = [32, 64]
    with pytest.raises(RuntimeError, match="the worker is a process of its own"):
        asyncio.run(measure(TimedEngine(can_be_set=False), args))


def test_prompts_are_new_and_the_engine_takes_the_longest() -> None:
    engine = TimedEngine()
    prompts = [tuple(engine.prompt(9)) for _ in range(50)]
    assert len(set(prompts)) == 50 and {len(p) for p in prompts} == {9}
    args = Namespace(
        lengths=[2048], limit=32_768, long=8192, model=None, kv_bytes=1, enforce_eager=False, step_tokens=[512]
    )  # fmt: skip
    made = engine_arguments(args, Path("shape"))
    assert made["max_num_batched_tokens"] == made["hf_overrides"]["max_source_positions"] == 32_768
    assert made["load_format"] == "dummy"
    assert made["ec_manager_config"]["manager_config"]["busy_step_tokens"] == 512
    assert all(0 <= i < 768 for i in itertools.chain(*prompts))  # the demo's vocabulary
