"""The report of a benchmark: rows with speed-up and equality against the base arm, and what they stand on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from app.bench.arithmetic import ratio
from app.bench.equality import compare
from app.drafts.machine import hardware, versions

SCHEMA = 1
_NOT_IN_ROWS = {"key", "outputs", "requests", "gaps", "drafts", "server", "model"}
_OF_DRAFTS = (
    *("family", "k", "default_k", "block_size", "num_draft_layers", "draft_hidden_size", "aux_layer_ids"),
    *("draft_vocab_size", "lm_head", "embedding", "sample_from_anchor", "markov_head_type", "markov_rank"),
    *("dtype", "max_model_len", "max_encoder_len", "max_num_seqs"),
)
"""What of the server's /drafts stands in the report."""


def build(
    command: str,
    base: str | None,
    protocol: Mapping[str, Any],
    sets: Sequence[Mapping[str, Any]],
    records: Sequence[Mapping[str, Any]],
    missing: Sequence[str],
) -> dict[str, Any]:
    """The report, JSON-ready.

    Args:
        command: what was typed.
        base: name of the arm to compare with; without it speed-ups and equality are null.
        protocol: what every request had in common.
        sets: the prompt sets with their hashes.
        records: the cells' records, as `cell.numbers` makes them.
        missing: cells that were not measured.
    """
    return {
        "schema": SCHEMA,
        "partial": bool(missing) or any(record["partial"] for record in records),
        "missing": list(missing),
        "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "base": base,
        "protocol": dict(protocol),
        "prompt_sets": [dict(prompts) for prompts in sets],
        "arms": _arms(records),
        "client": {"versions": versions(), "hardware": hardware()},
        "rows": rows(records, base),
    }


def rows(records: Sequence[Mapping[str, Any]], base: str | None) -> list[dict[str, Any]]:
    """One row a record, ordered by prompt set, concurrency, then as the arms are given.

    `speedup` = output tokens/s over the base arm's of the same set and concurrency; null without a base or
    when it made no token. A partial row is compared as far as it goes, but has no speed-up.
    """
    bases = {(record["set"], record["concurrency"]): record for record in records if record["arm"] == base}
    names = list(dict.fromkeys(record["set"] for record in records))
    result = []
    for record in sorted(records, key=lambda record: (names.index(record["set"]), record["concurrency"])):
        other = bases.get((record["set"], record["concurrency"]))
        row = {name: value for name, value in record.items() if name not in _NOT_IN_ROWS}
        row |= {"speedup": None, "equality": None}
        if other is not None and not (record["partial"] or other["partial"]):
            row["speedup"] = ratio(record["output_tokens_per_s"], other["output_tokens_per_s"])
        if other is not None and other is not record:
            row["equality"] = compare(other["outputs"], record["outputs"]).to_json()
        result.append(row)
    return result


def _arms(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What each arm's server said of itself; names of checkpoints only, no paths of the machine."""
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        drafts = record["drafts"]
        found[record["arm"]] = {
            "name": record["arm"],
            "model": record["model"],
            "verifier": _last((drafts.get("verifier") or {}).get("name")),
            "draft": _last(drafts.get("draft")),
            **{key: drafts[key] for key in _OF_DRAFTS if drafts.get(key) is not None},
            "server": record["server"],
        }
    return list(found.values())


def _last(name: str | None) -> str | None:
    """A local path's last part; a hub id as it is."""
    return name.rstrip("/").rsplit("/", 1)[-1] if name and name.startswith(("/", ".")) else name
