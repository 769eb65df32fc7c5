"""Numbers of a report as people read them: the same words in the terminal and in Markdown.

A speed-up below 1 is printed as what it is; what is not known is a dash.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.bench.reply import in_words

DASH = "–"


def number(value: float | None, digits: int = 1) -> str:
    return DASH if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    return DASH if value is None else f"{100 * value:.1f} %"


def speedup(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f}×"


def spread(values: Mapping[str, float] | None, *names: str) -> str:
    """The named parts of a spread in milliseconds, slashes between."""
    return DASH if values is None else " / ".join(number(values[name]) for name in names)


def arm(row: Mapping[str, Any]) -> str:
    """The arm's name, with the share that was measured when that is not all."""
    seen = row["completed"] + row["failed"]
    return f"{row['arm']} (partial: {seen} of {row['prompts']})" if row["partial"] else str(row["arm"])


def requests(row: Mapping[str, Any]) -> str:
    return f"{row['completed']}, {row['failed']} failed" if row["failed"] else str(row["completed"])


def tokens(row: Mapping[str, Any]) -> str:
    """Output tokens; marked when they were counted from the text."""
    mark = "" if row["token_source"] in ("usage", None) else f" ({row['token_source']})"
    return DASH if row["output_tokens"] is None else f"{row['output_tokens']}{mark}"


def equal(row: Mapping[str, Any]) -> str:
    equality = row["equality"]
    return DASH if equality is None else f"{equality['equal']}/{equality['compared']}"


def accepted(row: Mapping[str, Any], name: str) -> float | None:
    """A number of the row's acceptance, None without a draft."""
    return (row["acceptance"] or {}).get(name)


def estimate(row: Mapping[str, Any]) -> float | None:
    """The speed-up that the row's server itself estimated, None where it told none."""
    found = (row.get("estimate") or {}).get("speedup")
    return None if found is None else float(found["overall"])


def positions(row: Mapping[str, Any]) -> list[float | None]:
    """Unconditional acceptance at positions 0, 1, ... of the block."""
    return [position["rate"] for position in (row["acceptance"] or {}).get("per_position", [])]


def notes(report: Mapping[str, Any]) -> list[str]:
    """What a reader has to know beside the numbers; one sentence each."""
    lines = []
    if report["partial"]:
        lines.append(f"Partial result: {len(report['missing'])} cells were not measured.")
    if report["base"] is None:
        lines.append("No base arm: no speed-up and no equality can be given.")
    protocol = report["protocol"]
    warmups = sorted({row["warmup"] for row in report["rows"]})
    if warmups and max(warmups) > protocol["warmup"]:
        lines.append(
            f"Warm-up was raised from {protocol['warmup']} to the concurrency: {max(warmups)} requests."
        )
    if any(row["token_source"] not in ("usage", None) for row in report["rows"]):
        lines.append("Some servers gave no usage: their tokens were counted as marked.")
    for row in report["rows"]:
        where = f"{row['arm']}, {row['set']}, concurrency {row['concurrency']}"
        if row["output_tokens"] is None:
            lines.append(f"{where}: tokens unknown, there is neither usage nor a tokenizer (--tokenizer).")
        if row["failed"]:
            counts = in_words(row["failures"])
            lines.append(f"{where}: {row['failed']} requests failed ({counts}): {'; '.join(row['errors'])}")
        if protocol["json_schema_sha256"] and (cut := row["finish_reasons"].get("length")):
            lines.append(
                f"{where}: {cut} of {row['completed']} answers were cut off by --max-tokens before their schema"
                " ended: no whole JSON."
            )
        first = (row["equality"] or {}).get("first_difference")
        if first is not None:
            unit = "token" if row["equality"]["by"] == "token_ids" else "character"
            lines.append(
                f"{where}: the first difference is in prompt {first['prompt']} at {unit} {first['position']}:"
                f" {first['base']!r} became {first['arm']!r}."
            )
    return lines
