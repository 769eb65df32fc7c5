"""Acceptance counters of a server, read before and after: only their difference says anything of a run.

They are vLLM's own Prometheus series, which every vLLM server has, and by K this gateway's `/drafts/stats`, which also
stands in for the series where those are missing. The arithmetic is the ledger's, so a rate means the same here as at
`/drafts/stats`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from app.drafts.ledger import Counts

_PREFIX = "vllm:spec_decode_num_"
_SETTLE_S = 0.05
_SETTLE_READS = 40


@dataclass(frozen=True, slots=True)
class Reading:
    """`source` is the path that answered; series of several engines are added up. `by_k` has the drafts of each K,
    where the server tells.
    """

    source: str
    counts: Counts
    by_k: Mapping[int, Counts] = field(default_factory=dict)


def parse(text: str) -> Counts | None:
    """Counts from Prometheus text; None when the server does not speculate. `k` is the number of positions."""
    lines = [line for line in text.splitlines() if line.startswith(_PREFIX)]
    sums: dict[str, int] = {}
    accepted: dict[int, int] = {}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            name = sample.name.removeprefix(_PREFIX)
            if name == "accepted_tokens_per_pos_total":
                position = int(sample.labels["position"])
                accepted[position] = accepted.get(position, 0) + int(sample.value)
            elif name.endswith("_total"):
                sums[name] = sums.get(name, 0) + int(sample.value)
    if "drafts_total" not in sums:
        return None
    k = max(accepted, default=-1) + 1
    return Counts(
        k,
        sums["drafts_total"],
        sums.get("draft_tokens_total", 0),
        sums.get("accepted_tokens_total", 0),
        accepted=[accepted.get(position, 0) for position in range(k)],
    )


async def read(client: httpx.AsyncClient) -> Reading | None:
    """The server's counts now; None when it tells none."""
    answer = await client.get("/metrics", follow_redirects=True)
    counts = parse(answer.text) if answer.is_success else None
    if counts is not None and "\nt5gemma_drafts_total{" not in answer.text:
        return Reading("/metrics", counts)
    told = await client.get("/drafts/stats")
    stats = told.json() if told.is_success else {}
    by_k = {entry["k"]: _counts(entry["k"], entry["lifetime"]) for entry in stats.get("by_k", ())}
    if counts is not None:
        return Reading("/metrics", counts, by_k)
    return Reading("/drafts/stats", _counts(stats["k"], stats["lifetime"]), by_k) if stats.get("k") else None


def _counts(k: int, told: Mapping[str, Any]) -> Counts:
    accepted = [position["accepted"] for position in told["per_position"]]
    return Counts(k, told["drafts"], told["draft_tokens"], told["accepted_tokens"], [], accepted)


async def settled(client: httpx.AsyncClient, drafts: int = 0) -> Reading | None:
    """The counts once two readings agree and have `drafts`: a server may count a step after its tokens were sent."""
    last = await read(client)
    for _ in range(_SETTLE_READS):
        await asyncio.sleep(_SETTLE_S)
        now = await read(client)
        if now == last and (now is None or now.counts.drafts >= drafts):
            break
        last = now
    return last


def acceptance_between(before: Reading | None, after: Reading | None) -> dict[str, Any] | None:
    """What was drafted and accepted between two readings, JSON-ready; None without a draft, and when the
    counters went backwards because the engine was restarted. Where several K were used, positions are told for each K
    alone (`by_k`).
    """
    if before is None or after is None or before.source != after.source:
        return None
    whole = _difference(before.counts, after.counts)
    if whole.drafts < 0:
        return None
    by_k = {k: _difference(before.by_k.get(k, Counts.of(k)), counts) for k, counts in after.by_k.items()}
    used = {k: _json(counts) for k, counts in by_k.items() if counts.drafts}
    if len(used) == 1:
        return {"source": after.source, **next(iter(used.values()))}
    if used:
        entries = [{"k": k, **told} for k, told in used.items()]
        return {"source": after.source, **_json(whole), "per_position": [], "by_k": entries}
    return {"source": after.source, **_json(whole)}


def _difference(old: Counts, new: Counts) -> Counts:
    return Counts(
        new.k,
        new.drafts - old.drafts,
        new.draft_tokens - old.draft_tokens,
        new.accepted_tokens - old.accepted_tokens,
        accepted=[a - b for a, b in zip(new.accepted, [*old.accepted, *[0] * new.k], strict=False)],
    )


def _json(counts: Counts) -> dict[str, Any]:
    answer = counts.to_json()
    for position in answer["per_position"]:
        del position["proposed"]  # the engine's series do not tell it
    return answer
