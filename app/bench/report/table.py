"""The report in the terminal: one line a cell, the numbers that one looks at first."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from rich.table import Table

from app.bench.report import text


def table(report: Mapping[str, Any]) -> Table:
    """Times are medians in milliseconds."""
    columns = {
        "set": lambda row: row["set"],
        "conc.": lambda row: str(row["concurrency"]),
        "arm": text.arm,
        "requests": text.requests,
        "tokens": text.tokens,
        "tok/s": lambda row: text.number(row["output_tokens_per_s"]),
        "speed-up": lambda row: text.speedup(row["speedup"]),
        "estimate": lambda row: text.speedup(text.estimate(row)),
        "latency ms": lambda row: text.spread(row["latency_ms"], "p50"),
        "TTFT ms": lambda row: text.spread(row["ttft_ms"], "p50"),
        "ITL ms": lambda row: text.spread(row["itl_ms"], "p50"),
        "TPOT ms": lambda row: text.spread(row["tpot_ms"], "p50"),
        "acc. rate": lambda row: text.percent(text.accepted(row, "acceptance_rate")),
        "acc. length": lambda row: text.number(text.accepted(row, "mean_acceptance_length"), 2),
        "equal": text.equal,
    }
    shown = Table(caption="\n".join(text.notes(report)) or None, caption_justify="left")
    for name in columns:
        shown.add_column(name, justify="left" if name in ("set", "arm") else "right")
    for _, rows in groupby(report["rows"], key=lambda row: (row["set"], row["concurrency"])):
        for row in rows:
            shown.add_row(*(write(row) for write in columns.values()))
        shown.add_section()
    return shown
