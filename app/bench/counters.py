"""Acceptance counters of a server, read before and after: only their difference says anything of a run.

They are vLLM's own Prometheus series, which every vLLM server has; where those are missing, this gateway's
`/drafts/stats`. The arithmetic is the ledger's, so a rate means the same here as at `/drafts/stats`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from app.drafts.ledger import Counts

_PREFIX = "vllm:spec_decode_num_"
_SETTLE_S = 0.05
_SETTLE_READS = 40


@dataclass(frozen=True, slots=True)
class Reading:
    """`source` is the path that answered; series of several engines are added up."""

    source: str
    counts: Counts


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
    if answer.is_success and (counts := parse(answer.text)) is not None:
        return Reading("/metrics", counts)
    answer = await client.get("/drafts/stats")
    if not answer.is_success or not (stats := answer.json()).get("k"):
        return None
    life = stats["lifetime"]
    accepted = [position["accepted"] for position in life["per_position"]]
    counts = Counts(stats["k"], life["drafts"], life["draft_tokens"], life["accepted_tokens"], [], accepted)
    return Reading("/drafts/stats", counts)


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
    counters went backwards because the engine was restarted.
    """
    if before is None or after is None or before.source != after.source:
        return None
    new, old = after.counts, before.counts
    counts = Counts(
        new.k,
        new.drafts - old.drafts,
        new.draft_tokens - old.draft_tokens,
        new.accepted_tokens - old.accepted_tokens,
        accepted=[a - b for a, b in zip(new.accepted, [*old.accepted, *[0] * new.k], strict=False)],
    )
    if counts.drafts < 0:
        return None
    answer = counts.to_json()
    for position in answer["per_position"]:
        del position["proposed"]  # the engine's series do not tell it
    return {"source": after.source, **answer}
