"""A whole soak: the answers alone, then all cases mixed, then the reckoning."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import httpx

from app.bench.errors import BenchError
from benchmarks.soak.answers import Answer
from benchmarks.soak.books import GROWTH, RESIDENT, Books, Check, idle, reckoning
from benchmarks.soak.cases import DRAFT_LENGTH, TOKENIZE, Case, bases, mixed, of_every_kind
from benchmarks.soak.load import Seen, answers_alone, send, soak
from plugin.training.data.problems.generate import generate

PROBLEMS_SEED = 43_000
FIRST = 0.2
"""Share of the requests after which the API process must not grow any more."""


@dataclass(frozen=True, slots=True)
class Soaked:
    """Memory in bytes, after the first fifth and at the end; `seconds` of the mixed requests."""

    seen: Seen
    checks: Sequence[Check]
    alone: int
    seconds: float
    memory: tuple[float, float]

    @property
    def growth(self) -> float:
        first, last = self.memory
        return last / first - 1 if first else 0.0

    def all_checks(self) -> list[Check]:
        """The reckoning, and the API process's memory."""
        return [*self.checks, Check("growth of the API process", self.growth, -1, GROWTH)]

    def faults(self) -> Sequence[str]:
        """Replies that differ, in words."""
        return self.seen.faults

    @property
    def title(self) -> str:
        return f"{sum(self.seen.kinds.values())} requests in {self.seconds:.0f} s"

    def to_json(self) -> dict[str, Any]:
        requests = sum(self.seen.kinds.values())
        return {
            "requests": requests,
            "seconds": round(self.seconds, 1),
            "requests_per_second": round(requests / self.seconds, 2),
            "answers_alone": self.alone,
            "kinds": dict(self.seen.kinds),
            "replies": {f"{path} {status}": n for (path, status), n in sorted(self.seen.replies.items())},
            "left": dict(self.seen.left),
            "completion_tokens": self.seen.tokens,
            "memory_bytes": {
                "first": self.memory[0],
                "last": self.memory[1],
                "growth": round(self.growth, 4),
            },
            "checks": [check.to_json() for check in self.all_checks()],
            "faults": self.seen.faults,
        }


async def run(
    client: httpx.AsyncClient,
    requests: int,
    prompts: int,
    at_once: int,
    seed: int,
    say: Callable[[str], None] = lambda words: None,
) -> Soaked:
    """So many requests over so many different prompts, `at_once` under way at any time; the K that was asked for
    before is asked for again.

    Raises:
        BenchError: K cannot be changed, or a request alone is not answered as its kind is.
    """
    drafts = (await client.get("/drafts/stats")).raise_for_status().json()
    max_k = (await client.get("/drafts")).raise_for_status().json()["block_size"] - 1
    await _choose(client, 0)
    try:
        cases = await _cases(client, prompts, max_k)
        every = [case for kind in cases.values() for case in kind]
        say(f"asking {len({case.alone.content for case in every})} requests alone, at K = 0")
        alone = await answers_alone(client, every)
        for case in every:
            _check_alone(case, alone)
        before, memory, clock = await idle(client), [0.0], asyncio.get_running_loop().time
        first, began = max(1, int(requests * FIRST)), clock()

        async def after(ended: int) -> None:
            if ended == first:
                memory[0] = (await Books.read(client)).sum(RESIDENT)
            if ended % max(1, requests // 10) == 0:
                say(f"{ended} of {requests} requests, {clock() - began:.0f} s")

        seen = await soak(client, mixed(cases, requests, seed), alone, at_once, after, seed)
        seconds, ended = clock() - began, await idle(client)
    finally:
        await _choose(client, drafts["asked"])
    checks = list(reckoning(before, ended, seen, max_k))
    return Soaked(seen, checks, len(alone), seconds, (memory[0], ended.sum(RESIDENT)))


async def _cases(client: httpx.AsyncClient, prompts: int, max_k: int) -> dict[str, list[Case]]:
    texts = [problem.question for problem in islice(generate(PROBLEMS_SEED, "fresh"), prompts)]
    ids = []
    for text in texts:
        told = await client.post(TOKENIZE, json={"prompt": text})
        ids.append(told.raise_for_status().json()["tokens"])
    said = [(await send(client, case.alone)).choices[0].text for case in bases(texts)]
    listed = (await client.get("/v1/models")).raise_for_status().json()["data"][0]
    return of_every_kind(texts, ids, said, listed["max_encoder_len"], max_k)


async def _choose(client: httpx.AsyncClient, k: int | str) -> None:
    reply = await client.post(DRAFT_LENGTH, json={"k": k})
    if reply.status_code != httpx.codes.OK:
        raise BenchError(f"{DRAFT_LENGTH}: {reply.status_code} {reply.text[:300]}")


def _check_alone(case: Case, alone: dict[bytes, Answer]) -> None:
    if case.path == DRAFT_LENGTH:
        return
    answer = alone[case.alone.content]
    if (answer.status == httpx.codes.OK) == (case.kind == "refused"):
        raise BenchError(f"{case.kind}: {case.content[:300]!r} alone: {answer.status} {answer.other}")
