"""From the timed workloads to the figures that the results file has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

FIGURES = {
    "kernel_bandwidth_fraction": ("decode, 64 x (2048 + 1024)", "bandwidth_fraction"),
    "kernel_over_fa3_decode": ("decode, 64 x (2048 + 1024)", "over_fa3"),
    "kernel_over_fa3_k7": ("verify K=7, 64 x (2048 + 1024)", "over_fa3"),
    "kernel_over_fa3_k15": ("verify K=15, 64 x (2048 + 1024)", "over_fa3"),
    "kernel_bs1_long_us_over_floor": ("decode, 1 x (8192 + 1)", "over_floor"),
    "kernel_bs1_long_us_over_floor_k7": ("verify K=7, 1 x (8192 + 64)", "over_floor"),
}
"""Figure -> the workload and the column that it is."""


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The figures of `rows`, one a workload; those that were not measured are left out."""
    by_name = {row["workload"]: row for row in rows}
    found = {name: by_name.get(workload, {}).get(column) for name, (workload, column) in FIGURES.items()}
    return {name: float(value) for name, value in found.items() if value is not None}
