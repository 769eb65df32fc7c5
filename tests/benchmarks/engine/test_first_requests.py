"""What the starts and first requests say."""

from __future__ import annotations

import pytest

from benchmarks.attention.figures import FIGURES
from benchmarks.attention.figures import figures as attention_figures
from benchmarks.engine.first_requests import figures


def test_the_slowest_first_request_of_any_start_counts() -> None:
    times = {
        "demo_cold": {"greedy": [0.2, 0.1, 0.1, 0.1], "sampled": [0.1] * 4},
        "demo": {"greedy": [0.1] * 4, "logprobs": [0.35, 0.1, 0.1, 9.0]},
    }
    assert figures({"demo_cold": 100.0, "demo": 40.0}, times) == pytest.approx({
        "first_request_over_median": 3.5,
        "ready_s_demo_cold": 100.0,
        "ready_s_demo": 40.0,
    })  # fmt: skip


def test_figures_of_the_attention() -> None:
    """Every figure has a workload of that name; what was not measured, FlashAttention missing, is left out."""
    pytest.importorskip("triton")
    from benchmarks.attention.workloads import WORKLOADS

    names = [workload.name for workload in WORKLOADS]
    rows = [{"workload": n, "bandwidth_fraction": 0.8, "over_floor": 1.5, "over_fa3": 0.9} for n in names]
    assert attention_figures(rows).keys() == FIGURES.keys()
    found = attention_figures([{**row, "over_fa3": None} for row in rows])
    assert found == {
        "kernel_bandwidth_fraction": 0.8,
        "kernel_bs1_long_us_over_floor": 1.5,
        "kernel_bs1_long_us_over_floor_k7": 1.5,
    }
