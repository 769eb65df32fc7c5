"""The server's own numbers before and after a soak, against what the clients saw."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.soak.cases import COMPLETIONS
from benchmarks.soak.load import Seen

IDLE_S, POLL_S = 10.0, 0.1
GROWTH = 0.05
"""Of the API process's memory, at most."""
LEFT = (200, 499)
"""What a request may end with whose client left: before or after its end."""
RESIDENT = "process_resident_memory_bytes"
BUSY = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "t5gemma_sequences_in_flight",
    "t5gemma_encoder_cache_requests",
)
"""Gauges that are 0 when the engine is idle: with the K/V blocks in use, and the requests that hold encoder states."""

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Books:
    """All samples of /metrics, and /drafts/stats."""

    samples: Mapping[tuple[str, Labels], float]
    stats: Mapping[str, Any]

    @classmethod
    async def read(cls, client: httpx.AsyncClient) -> Books:
        text = (await client.get("/metrics")).raise_for_status().text
        found = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        return cls(found, (await client.get("/drafts/stats")).raise_for_status().json())

    def sum(self, name: str) -> float:
        """Over the samples of a series, 0 without any."""
        return sum(value for (found, _), value in self.samples.items() if found == name)

    @property
    def replies(self) -> dict[tuple[str, int], int]:
        """HTTP replies by path and status."""
        found: dict[tuple[str, int], int] = {}
        for (name, labels), value in self.samples.items():
            if name == "t5gemma_http_requests_total":
                told = dict(labels)
                found[told["handler"], int(told["status"])] = int(value)
        return found


async def idle(client: httpx.AsyncClient) -> Books:
    """The books once nothing runs any more and two readings agree, or after some seconds as they are."""
    clock = asyncio.get_running_loop().time
    until, last = clock() + IDLE_S, None
    while True:
        now = await Books.read(client)
        counted = {
            key: value for key, value in now.samples.items() if key[0].startswith(("vllm:", "t5gemma_d"))
        }
        if (not any(now.sum(name) for name in BUSY) and counted == last) or clock() > until:
            return now
        last = counted
        await asyncio.sleep(POLL_S)


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the reckoning."""

    name: str
    found: float
    low: float
    high: float

    @property
    def right(self) -> bool:
        return self.low <= self.found <= self.high

    @property
    def words(self) -> str:
        return f"{self.name}: {self.found:g}, must be {self.low:g} ... {self.high:g}"

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; a bound that is none is left out."""
        bounds = {"low": self.low, "high": self.high}
        known = {name: round(value, 4) for name, value in bounds.items() if math.isfinite(value)}
        return {"name": self.name, "found": round(self.found, 4), **known, "right": self.right}


def reckoning(before: Books, after: Books, seen: Seen, max_k: int) -> Iterator[Check]:
    """Every number that both sides know.

    What the engine did for a client that left lies between nothing and all that was asked for; of every sequence a
    last step may have accepted up to K tokens behind its end, and a step or two may follow a stop string.
    """
    yield Check("requests lost", seen.lost, 0, 0)
    yield Check("replies that differ", seen.wrong, 0, 0)
    yield from _replies(before.replies, after.replies, seen)

    def gained(name: str) -> float:
        return after.sum(name) - before.sum(name)

    generated = seen.left_tokens + 3 * (max_k + 1) * seen.stopped_sequences
    accepted = generated + max_k * (seen.sequences + seen.left_sequences)
    encoder = ("t5gemma_encoder_cache_hits_total", "t5gemma_encoder_cache_misses_total")
    for words, names, known, spare in (
        ("tokens generated", ("vllm:generation_tokens_total",), seen.tokens, generated),
        ("draft tokens accepted", ("vllm:spec_decode_num_accepted_tokens_total",), seen.accepted, accepted),
        ("sequences encoded", encoder, seen.sequences, seen.left_sequences),
    ):
        yield Check(words, sum(map(gained, names)), known, known + spare)
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        told = sum(entry["lifetime"][name] for entry in after.stats.get("by_k", ()))
        engine = after.sum(f"vllm:spec_decode_num_{name}_total")
        yield Check(f"/drafts/stats {name}", told, engine, engine)
        own = after.sum(f"t5gemma_{name}_total")
        yield Check(f"t5gemma_{name}_total", own, engine, engine)
    for name in BUSY:
        yield Check(f"{name} at the end", after.sum(name), 0, 0)


def _replies(
    before: Mapping[tuple[str, int], int], after: Mapping[tuple[str, int], int], seen: Seen
) -> Iterator[Check]:
    paths = {path for path, _ in seen.replies}
    for path in sorted(paths):
        counted = {key: n - before.get(key, 0) for key, n in after.items() if key[0] == path}
        left, statuses = seen.left[path], {status for p, status in seen.replies if p == path}
        for _, status in sorted({*counted, *((path, status) for status in statuses)}):
            found, known = counted.get((path, status), 0), seen.replies[path, status]
            if found or known:
                yield Check(f"{path} {status}", found, known, known + (left if status in LEFT else 0))
        if path == COMPLETIONS:
            every = sum(n for (p, _), n in seen.replies.items() if p == path) + left
            yield Check(f"{path}, all", sum(counted.values()), every, every)
