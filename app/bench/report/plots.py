"""The report as plots: speed-up by prompt set and K, and acceptance by position, each as PNG and SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.bench.errors import BenchError
from app.bench.report import text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")
_INCHES = (5.0, 3.6)


def draw(report: Mapping[str, Any], folder: Path) -> list[str]:
    """Writes what can be drawn and gives the PNGs' names; nothing is drawn of what nothing was measured.

    Raises:
        BenchError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise BenchError(
            "plots need the package matplotlib (pip install 't5gemma2-serving[bench]'), or give --no-plots"
        ) from None
    figures: dict[str, Figure] = {}
    # A fixed salt and no date: the same report gives the same files.
    with matplotlib.rc_context({"svg.hashsalt": "t5gemma2", "svg.fonttype": "path"}):
        rows = [row for row in report["rows"] if row["speedup"] is not None and row["arm"] != report["base"]]
        if rows:
            figures["speedup"] = speedup_figure(rows)
        rows = [row for row in report["rows"] if any(rate is not None for rate in text.positions(row))]
        if rows:
            figures["acceptance"] = acceptance_figure(rows)
        for name, figure in figures.items():
            for kind in FORMATS:
                metadata = {"Date": None} if kind == "svg" else {}
                figure.savefig(folder / f"{name}.{kind}", metadata=metadata, dpi=150)
    return [f"{name}.png" for name in figures]


def speedup_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Bars by prompt set, one colour an arm, one panel a concurrency; the line at 1 is the verifier alone."""
    sets, arms = _values(rows, "set"), _values(rows, "arm")
    panels = _values(rows, "concurrency")
    figure, axes = _panels(len(panels))
    width = 0.8 / len(arms)
    for panel, concurrency in zip(axes, panels, strict=True):
        for number, arm in enumerate(arms):
            heights = {
                row["set"]: row["speedup"]
                for row in rows
                if (row["arm"], row["concurrency"]) == (arm, concurrency)
            }
            centres = [sets.index(name) + (number - (len(arms) - 1) / 2) * width for name in heights]
            bars = panel.bar(centres, list(heights.values()), width, label=arm)
            panel.bar_label(bars, fmt="%.2f", fontsize=7)
        panel.axhline(1, color="black", linewidth=0.8)
        panel.set_xticks(range(len(sets)), sets)
        panel.set_title(f"concurrency {concurrency}")
    axes[0].set_ylabel("speed-up over the verifier alone")
    axes[0].legend(fontsize=7)
    return figure


def acceptance_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Curves over the block's positions, one colour an arm, a panel a prompt set, at the smallest concurrency."""
    lowest = min(row["concurrency"] for row in rows)
    rows = [row for row in rows if row["concurrency"] == lowest]
    sets = _values(rows, "set")
    figure, axes = _panels(len(sets))
    for panel, name in zip(axes, sets, strict=True):
        for row in (row for row in rows if row["set"] == name):
            rates = [math.nan if rate is None else rate for rate in text.positions(row)]
            panel.plot(range(len(rates)), rates, marker="o", label=row["arm"])
        panel.set_ylim(0, 1)
        panel.set_xlabel("position in the block")
        panel.set_title(f"{name}, concurrency {lowest}")
        panel.legend(fontsize=7)
    axes[0].set_ylabel("acceptance rate (unconditional)")
    return figure


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_INCHES[0] * count, _INCHES[1]), layout="constrained")
    axes = figure.subplots(1, count, sharey=True, squeeze=False)
    return figure, list(axes[0])


def _values(rows: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """The distinct values of a column in order of appearance."""
    return list(dict.fromkeys(row[name] for row in rows))
