"""Arms warm up until they settle, then run in turns; what they say becomes figures. No engine is started."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engine.__main__ import run_all
from benchmarks.engine.figures import graph_figures, host_figures, ratio, time_figures
from benchmarks.engine.specs import ARMS, specs
from benchmarks.engine.turns import SLOW_ROUNDS, WARM_UP_ROUNDS, Work, measure, settled
from benchmarks.shapes import PUBLISHED
from plugin.drafts.families import FAMILIES

NEW = 128


class FakeArm:
    """Takes the times it is given, then a millisecond a step of a run; `log` has every command in order."""

    def __init__(
        self, name: str, log: list[tuple[str, dict[str, Any]]], times: Iterator[float] | None = None
    ):
        self.name, self.log, self.times = name, log, times

    def ask(self, **command: Any) -> dict[str, Any]:
        self.log.append((self.name, command))
        if "run" in command:
            tokens = command["run"] * command["tokens"]
            seconds = next(self.times) if self.times else 1e-3 * command["tokens"]
            return {"seconds": seconds, "tokens": tokens}
        if "busy" in command:
            return {
                "kernels": {"matrix": 600.0 * command["tokens"], "attend_kernel": 100.0 * command["tokens"]}
            }
        if "graphs" in command:
            return {"verify": [1e-3, 1e-3], "draft": [4e-4, 2e-4]}
        if "attention" in command:
            return {"attend_kernel": [6.0, 6.5, 7.0], "join_kernel": [1.0, 1.0, 1.0]}
        if "path" in command:
            row = {"count": 26.0, "critical_us": 150.0, "gap_us": 10.0, "duration_us": 300.0}
            return {"verify": {"attend_kernel": row}}
        return {"bytes_per_second": 4e12}


class Dead(FakeArm):
    """Answers nothing."""

    def ask(self, **command: Any) -> dict[str, Any]:
        raise RuntimeError("the arm has ended")


@pytest.mark.parametrize(
    ("seconds", "warm"),
    [([], False), ([1.0], False), ([2.0, 1.0], False), ([2.0, 1.0, 1.02], True), ([1.0, 1.04], False)],
)
def test_settled(seconds: list[float], warm: bool) -> None:
    assert settled(seconds) is warm


def test_rounds_before_the_arm_settles_do_not_count() -> None:
    log: list[tuple[str, dict[str, Any]]] = []
    work = Work(1, NEW)
    arms: dict[str, Any] = {
        "raw": FakeArm("raw", log, chain([9.0, 5.0, 2.0, 2.01], repeat(2.0))),
        "dflash": FakeArm("dflash", log, repeat(1.0)),
    }
    assert measure(arms, [work], {NEW: 3}, []) == {work: {"raw": [2.0] * 3, "dflash": [1.0] * 3}}
    assert [name for name, _ in log] == ["raw", "dflash"] * (4 + 3)


def test_an_arm_that_never_settles_is_measured_all_the_same() -> None:
    log: list[tuple[str, dict[str, Any]]] = []
    work = Work(1, NEW)
    arms: dict[str, Any] = {"raw": FakeArm("raw", log, (1.0 * 2**i for i in range(100)))}
    seconds = measure(arms, [work], {NEW: 2}, [])
    assert seconds[work]["raw"] == [2.0**WARM_UP_ROUNDS, 2.0 ** (WARM_UP_ROUNDS + 1)]


def test_transformers_takes_part_in_the_first_rounds_of_its_works_only() -> None:
    log: list[tuple[str, dict[str, Any]]] = []
    first, whole = Work(1, 1), Work(1, NEW)
    arms: dict[str, Any] = {name: FakeArm(name, log) for name in ("transformers", "raw")}
    seconds = measure(arms, [first, whole], {1: 5, NEW: 5}, [whole])
    assert {work: {name: len(each) for name, each in by.items()} for work, by in seconds.items()} == {
        first: {"raw": 5},
        whole: {"raw": 5, "transformers": SLOW_ROUNDS},
    }
    assert sum(name == "transformers" for name, _ in log) == 1 + SLOW_ROUNDS


def test_an_arm_that_ends_is_taken_out(capsys: pytest.CaptureFixture[str]) -> None:
    arms: dict[str, Any] = {"raw": FakeArm("raw", []), "dflash": Dead("dflash", [])}
    seconds = measure(arms, [Work(1, NEW)], {NEW: 2}, [])
    assert list(arms) == ["raw"] and list(seconds[Work(1, NEW)]) == ["raw"]
    assert "has ended" in capsys.readouterr().err


def test_fewer_tokens_than_asked_end_it() -> None:
    class Short(FakeArm):
        def ask(self, **command: Any) -> dict[str, Any]:
            return {"seconds": 1.0, "tokens": 1}

    with pytest.raises(RuntimeError, match="1 tokens"):
        measure({"raw": Short("raw", [])}, [Work(4, NEW)], {NEW: 1}, [])


def test_a_ratio_is_the_median_of_its_rounds_and_has_their_range() -> None:
    """A machine that is three times slower in one round and in part of another says nothing of the arms."""
    found = ratio([2.0, 6.0, 3.0], [1.0, 3.0, 2.0])
    assert (found.value, found.low, found.high, found.rounds) == (2.0, 1.5, 2.0, 3)


def test_faster_arms_have_ratios_above_one() -> None:
    """A rate is over another's, a time to the first token as well: whichever is in the name is above."""
    times = {
        Work(4, 1): {"raw": [0.010], "decoder_only": [0.020]},
        Work(4, NEW): {"raw": [1.0], "decoder_only": [2.0], "transformers": [20.0], "dflash": [0.25]},
    }
    values = {name: figure.value for name, figure in time_figures(times, NEW).items()}
    assert values == pytest.approx({
        "ttft_over_decoder_only_bs4": 0.5,
        "raw_over_decoder_only_bs4": 2.0,
        "raw_over_transformers_bs4": 20.0,
        "speedup_dflash_k7_bs4": 4.0,
    })  # fmt: skip


def test_a_graph_is_measured_against_the_bytes_it_must_read() -> None:
    assert PUBLISHED.decode_bytes() == pytest.approx(2.0e9, rel=0.01)
    found = graph_figures({"raw": {"verify": [1e-3]}}, [8.0, 6.0, 7.0], 5e-4)
    assert found["raw_graph_over_floor_bs1"].value == pytest.approx(2.0)
    assert found["attention_us_k7_bs1_short"].value == 7.0
    assert graph_figures({}, [], None) == {}


def test_steps_a_second_leave_the_first_step_out() -> None:
    """4 tokens a step with a draft; the GPU's share is that of the steps between 1 and 32 tokens."""
    times = {
        Work(1, 32): {"raw": [0.132], "dflash": [0.108]},
        Work(1, NEW): {"raw": [0.324], "dflash": [0.156]},
    }
    found = host_figures(times, {("raw", 1): {1: 0.013, 32: 0.044}}, NEW)
    assert found["steps_per_second_raw_bs1"].value == pytest.approx(500)
    assert found["steps_per_second_dflash_bs1"].value == pytest.approx(500)
    assert found["gpu_share_raw_bs1"].value == pytest.approx(0.5)


def test_all_figures_of_the_table_come_out_of_one_run() -> None:
    arms: dict[str, Any] = {name: FakeArm(name, []) for name in ARMS}
    found, details = run_all(arms, [1, 4, 32], 2, NEW, PUBLISHED)
    wanted = {
        *(
            f"{name}_bs{b}"
            for name in ("ttft_over_decoder_only", "raw_over_decoder_only")
            for b in (1, 4, 32)
        ),
        *(f"raw_over_transformers_bs{b}" for b in (1, 4)),
        *(f"speedup_{family}_k7_bs{b}" for family in FAMILIES for b in (1, 4, 32)),
        *(f"draft_over_verify_{family}" for family in FAMILIES),
        "raw_graph_over_floor_bs1",
        "attention_us_k7_bs1_short",
    }
    assert wanted <= found.keys()
    assert found["attention_us_k7_bs1_short"].value == 7.5
    assert {name.rpartition("_bs")[0] for name in found.keys() - wanted} == {
        *(f"steps_per_second_{arm}" for arm in ARMS if arm != "transformers"),
        "gpu_share_decoder_only",
        "gpu_share_raw",
    }
    assert json.loads(json.dumps(details))["figures"].keys() == found.keys()


def test_arms_differ_in_what_they_compare(tmp_path: Path) -> None:
    """The same limits and one GPU for all; drafts verify 8 tokens a request."""
    made = specs(tmp_path, ARMS, [1, 4], prompt_tokens=64, new_tokens=NEW)
    engines = {name: spec["engine"] for name, spec in made.items()}
    assert {engine["gpu_memory_utilization"] for engine in engines.values()} == {0.12}
    assert engines["raw"]["model"] != engines["decoder_only"]["model"]
    assert "speculative_config" not in engines["raw"]
    assert engines["dspark"]["speculative_config"]["synthetic_acceptance_length"] == 4.0
    assert engines["raw"]["compilation_config"] == {"cudagraph_capture_sizes": [1, 4]}
    assert engines["dflare"]["compilation_config"] == {"cudagraph_capture_sizes": [8, 32]}
    assert (made["raw"]["query_len"], made["dflash"]["query_len"]) == (1, 8)
