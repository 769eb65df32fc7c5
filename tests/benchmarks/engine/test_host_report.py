"""The report on the host's part in a step, from made-up measurements."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from benchmarks.engine.host_report import Measured, headline, report
from benchmarks.engine.phases import Times

RAW = Measured(
    True, [900.0, 1000.0, 1010.0], [100, 99, 101], 9e-4, {"schedule": Times(1e-4, 1e-4, 1)}, 1.1e-3,
    {"sched/scheduler:schedule": Times(1.5e-4, 2e-4, 1)}, 2e-3,
)  # fmt: skip
DRAFT = Measured(
    True, [500.0], [20], 1.32e-3, {"schedule": Times(1.2e-4, 1.2e-4, 1), "propose: the rest": Times(3e-4, 4e-4, 1)},
    2.2e-3, {"sched/scheduler:schedule": Times(1.4e-4, 2e-4, 1), "torch.cat": Times(2e-5, 2e-5, 1)}, 3e-3,
    ["runner._sample"],
)  # fmt: skip


def test_the_gpus_share_is_its_time_a_step_times_the_undisturbed_steps_a_second() -> None:
    assert RAW.rate == 1000.0
    assert RAW.gpu_share == pytest.approx(0.9)
    assert DRAFT.gpu_share == pytest.approx(0.66)
    assert "1000.0 steps/s (900.0 ... 1010.0 in 3 rounds of 99 steps or more" in headline("raw", 1, RAW)
    assert headline("raw", 1, RAW).endswith("1000 us a step; the GPU is busy for 900 us of it, share 0.900")


def test_what_the_arms_process_sends_is_what_is_read() -> None:
    assert Measured.read(json.loads(json.dumps(asdict(DRAFT)))) == DRAFT


def test_a_draft_is_reported_with_what_it_costs_over_none() -> None:
    text = report("dflash", 1, DRAFT, RAW, top=2)
    over = text[text.index("dflash over raw, batch 1: us a step by phase") :].splitlines()
    assert over[2].split()[:2] == ["20.0", "20.0"]
    assert over[3].split()[:2] == ["300.0", "400.0"]
    by_function = text[text.index("dflash over raw, batch 1: us a step by function") :].splitlines()
    assert [line.split()[0] for line in by_function[2:4]] == ["20.0", "-10.0"]
    assert "timed, a step takes 1.10 times as long" in text
    assert "under cProfile a step takes 1.50 times as long" in text
    assert text.endswith("not in this engine: runner._sample")


def test_an_engine_in_a_process_of_its_own_has_a_line_alone() -> None:
    served = Measured(True, [480.0], [20])
    assert report("dflash, multiprocess", 1, served, RAW, top=2) == headline(
        "dflash, multiprocess", 1, served
    )
    assert "GPU" not in headline("dflash, multiprocess", 1, served)
