"""The report's rows, and the requests of a cell, as CSV: one line each, for a spreadsheet or a plot of one's own."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.bench.report import text

_PLAIN = (
    *("set", "concurrency", "arm", "family", "k", "prompts", "completed", "failed", "output_tokens"),
    *("seconds", "requests_per_s", "output_tokens_per_s", "speedup"),
)
_SPREADS = ("latency_ms", "ttft_ms", "itl_ms", "tpot_ms")


def comparison(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line an arm, set and concurrency; what is not known is empty."""
    return _written([_flat(row) for row in rows])


def requests(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line a request of a cell's record."""
    return _written(rows)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    equality = row["equality"] or {}
    flat: dict[str, Any] = {name: row[name] for name in _PLAIN}
    for name in _SPREADS:
        flat |= {f"{name}_{part}": value for part, value in (row[name] or {}).items()}
    flat |= {name: text.accepted(row, name) for name in ("acceptance_rate", "mean_acceptance_length")}
    flat |= {f"acceptance_at_{position}": rate for position, rate in enumerate(text.positions(row))}
    return flat | {"equal": equality.get("equal"), "compared": equality.get("compared")}


def _written(rows: Iterable[Mapping[str, Any]]) -> str:
    rows = list(rows)
    columns = dict.fromkeys(name for row in rows for name in row)
    file = io.StringIO()
    writer = csv.DictWriter(file, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
