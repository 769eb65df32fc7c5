"""The report as Markdown, complete enough to stand in BENCHMARKS.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from app.bench.report import text


def markdown(report: Mapping[str, Any], plots: Sequence[str] = ()) -> str:
    """The whole report; `plots` are file names beside it."""
    rows = report["rows"]
    parts = ["# Benchmark", *_origin(report)]
    parts += [f"- {note}" for note in text.notes(report)]
    parts += ["", "## Throughput and speed-up", "", *throughput(rows)]
    parts += ["", "## Times", "", "Milliseconds, mean / p50 / p95 / p99.", "", *_table(_TIMES, rows)]
    drafting = [row for row in rows if row["acceptance"] is not None]
    if drafting:
        parts += ["", "## Acceptance", "", *_table(_ACCEPTANCE, drafting)]
        parts += ["", "Unconditional acceptance by position of the block.", "", *_positions(drafting)]
    parts += ["", "## Prompts", "", *_table(_PROMPTS, report["prompt_sets"])]
    parts += [line for name in plots for line in ("", f"![{name.rpartition('.')[0]}]({name})")]
    return "\n".join(parts) + "\n"


def throughput(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of the table of speeds alone."""
    return _table(_THROUGHPUT, rows)


Columns = dict[str, Any]
"""Heading -> how a row's cell is written."""

_WHERE: Columns = {
    "set": lambda row: row["set"],
    "concurrency": lambda row: row["concurrency"],
    "arm": text.arm,
    "K": lambda row: row["k"] or text.DASH,
}
_THROUGHPUT: Columns = {
    **_WHERE,
    "requests": text.requests,
    "output tokens": text.tokens,
    "seconds": lambda row: text.number(row["seconds"]),
    "requests/s": lambda row: text.number(row["requests_per_s"], 3),
    "tok/s": lambda row: text.number(row["output_tokens_per_s"]),
    "speed-up": lambda row: text.speedup(row["speedup"]),
    "estimate": lambda row: text.speedup(text.estimate(row)),
    "equal outputs": text.equal,
}
_FOUR = ("mean", "p50", "p95", "p99")
_TIMES: Columns = {
    **_WHERE,
    "latency": lambda row: text.spread(row["latency_ms"], *_FOUR),
    "TTFT": lambda row: text.spread(row["ttft_ms"], *_FOUR),
    "ITL": lambda row: text.spread(row["itl_ms"], *_FOUR),
    "TPOT": lambda row: text.spread(row["tpot_ms"], *_FOUR),
}
_ACCEPTANCE: Columns = {
    **_WHERE,
    "acceptance rate": lambda row: text.percent(text.accepted(row, "acceptance_rate")),
    "mean acceptance length": lambda row: text.number(text.accepted(row, "mean_acceptance_length"), 2),
    "drafts": lambda row: text.accepted(row, "drafts"),
    "accepted / draft tokens": lambda row: (
        f"{text.accepted(row, 'accepted_tokens')}/{text.accepted(row, 'draft_tokens')}"
    ),
    "source": lambda row: row["acceptance"]["source"],
}
_PROMPTS: Columns = {
    "set": lambda prompts: prompts["name"],
    "source": lambda prompts: prompts["source"],
    "template": lambda prompts: f"`{prompts['template']}`".replace("\n", "\\n"),
    "prompts": lambda prompts: prompts["prompts"],
    "sha256 of the prompts": lambda prompts: f"`{prompts['sha256']}`",
}


def _origin(report: Mapping[str, Any]) -> Iterable[str]:
    machine, protocol = report["client"]["hardware"], report["protocol"]
    memory = f", {machine['memory_gib']} GiB" if machine["memory_gib"] else ""
    gpus = f", {'; '.join(machine['gpus'])}" if machine["gpus"] else ""
    schema = protocol["json_schema_sha256"]
    held = f", held to a JSON schema (sha256 `{schema}`)" if schema else ""
    versions = ", ".join(f"{name} {number}" for name, number in report["client"]["versions"].items())
    yield from ("", "```", report["command"], "```", "")
    yield (
        f"- Measured {report['created']}; client, and the servers it started, on {machine['cpu']},"
        f" {machine['cores']} cores{memory}{gpus}."
    )
    yield f"- Installed there: {versions}."
    yield (
        f"- Greedy, seed {protocol['seed']}, at most {protocol['max_tokens']} output tokens"
        f"{', EOS ignored' if protocol['ignore_eos'] else ''}{held}; at least {protocol['warmup']} warm-up requests a"
        f" cell are in no number. Speed-up is output tokens/s over the arm {report['base'] or text.DASH}."
    )
    for arm in report["arms"]:
        facts = {key: value for key, value in arm.items() if key not in ("name", "server")}
        server = " ".join(_words(arm["server"]))
        yield f"- Arm {arm['name']}: {', '.join(_words(facts))}{f'; server {server}' if server else ''}."


def _words(facts: Mapping[str, Any]) -> list[str]:
    return [f"{key} {value}" for key, value in facts.items() if value is not None]


def _positions(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    longest = max(len(text.positions(row)) for row in rows)
    return _table(_WHERE | {str(position): partial(_position, position) for position in range(longest)}, rows)


def _position(position: int, row: Mapping[str, Any]) -> str:
    rates = text.positions(row)
    return text.percent(rates[position]) if position < len(rates) else text.DASH


def _table(columns: Columns, rows: Iterable[Mapping[str, Any]]) -> list[str]:
    def line(cells: Iterable[Any]) -> str:
        return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |"

    return [
        line(columns),
        "|" + "---|" * len(columns),
        *(line(cell(row) for cell in columns.values()) for row in rows),
    ]
