"""More requests than can be served: `python -m benchmarks.soak --overload`.

First the capacity: as many clients as the server takes at once, each with its next request as soon as it is answered.
Then requests arrive at two and at five times that rate, whether or not others have ended (a Poisson process, as users
are). What is served must stay near the capacity, what is refused must be told so with 503 and `Retry-After`, and what
was accepted must end within the time that a full queue takes. A machine's speed drifts by more than a tenth within a
minute: the capacity is measured again behind each rate, and what counts is the median of some rounds.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from benchmarks.soak.books import Check

TIMES = (2.0, 5.0)
ROUNDS = 3
SECONDS = 20.0
RAMP = 0.2
"""Share of the time in which the queue fills, and what is served does not count."""
GOODPUT = 0.9
"""Of the capacity, at least."""
SLACK = 1.5
"""Of an accepted request's latency over the time that a queue full of the longest takes at capacity, at most."""
PROMPT = "A train travels 60 miles in 2 hours. What is its average speed?"
BODY = {"prompt": PROMPT, "temperature": 0, "ignore_eos": True}
TOKENS = (16, 48)
"""Of a request, drawn at random. Those of one length that began together end together, and the next ones are admitted
in one step: a capacity that arrivals one by one cannot have.
"""


@dataclass(slots=True)
class Offered:
    """What became of the requests of one rate. `latencies` of those that were served, and `refusals`, how long it took
    to be refused, both in seconds; `goodput` is output tokens a second, of requests that were served.
    """

    rate: float
    seconds: float
    statuses: Counter[int] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    refusals: list[float] = field(default_factory=list)
    without_retry_after: int = 0
    tokens_in_time: int = 0
    """Of what was served within the time after the ramp."""

    @property
    def goodput(self) -> float:
        return self.tokens_in_time / (self.seconds * (1 - RAMP))

    def to_json(self) -> dict[str, Any]:
        return {
            "requests_per_second": round(self.rate, 2),
            "goodput_tokens_per_second": round(self.goodput, 2),
            "statuses": dict(self.statuses),
            "latency_s": _quantiles(self.latencies),
            "refused_within_s": _quantiles(self.refusals),
        }


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    ranked = sorted(values)
    return {
        name: round(ranked[min(int(len(ranked) * share), len(ranked) - 1)], 3)
        for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
        if ranked
    }


async def capacity(client: httpx.AsyncClient, at_once: int, seconds: float) -> Offered:
    """Of so many clients that never wait."""
    clock, draw = asyncio.get_running_loop().time, random.Random(0)
    end = clock() + seconds
    found = Offered(0.0, seconds)

    async def one() -> None:
        while clock() < end:
            await _ask(client, draw.randint(*TOKENS), found, end)

    await asyncio.gather(*(one() for _ in range(at_once)))
    return found


async def offer(client: httpx.AsyncClient, rate: float, seconds: float) -> Offered:
    """Requests that arrive at this rate, a second, for so many seconds; counted is what is served within them."""
    clock, draw = asyncio.get_running_loop().time, random.Random(0)
    begin = clock()
    end, found = begin + seconds, Offered(rate, seconds)
    at = begin
    async with asyncio.TaskGroup() as arrivals:
        while (at := at + draw.expovariate(rate)) < end:
            await asyncio.sleep(max(0.0, at - clock()))
            arrivals.create_task(_ask(client, draw.randint(*TOKENS), found, end))
    return found


async def _ask(client: httpx.AsyncClient, tokens: int, found: Offered, end: float) -> None:
    clock = asyncio.get_running_loop().time
    sent = clock()
    reply = await client.post("/v1/completions", json={**BODY, "max_tokens": tokens})
    lasted = clock() - sent
    found.statuses[reply.status_code] += 1
    if reply.status_code == httpx.codes.OK:
        found.latencies.append(lasted)
        found.tokens_in_time += tokens * (end - found.seconds * (1 - RAMP) < clock() <= end)
    else:
        found.refusals.append(lasted)
        found.without_retry_after += "retry-after" not in reply.headers


@dataclass(frozen=True, slots=True)
class Round:
    """One rate for a while, and the capacity before and after it."""

    before: Offered
    offered: Offered
    after: Offered

    @property
    def kept(self) -> float:
        """Goodput over capacity."""
        return self.offered.goodput / statistics.fmean((self.before.goodput, self.after.goodput))

    def worst(self, limit: int) -> float:
        """The longest latency over the time that `limit` of the longest requests take."""
        slowest = min(self.before.goodput, self.after.goodput)
        return max(self.offered.latencies, default=0.0) / (limit * TOKENS[1] / slowest)


@dataclass(frozen=True, slots=True)
class Overloaded:
    """`limit` sequences may run or wait; `rounds` by rate, as in `TIMES`."""

    limit: int
    deadline_s: float
    rounds: Sequence[Sequence[Round]]

    @property
    def title(self) -> str:
        full = [one.before.goodput for rounds in self.rounds for one in rounds]
        return (
            f"capacity {min(full):.0f} to {max(full):.0f} tokens/s, {self.limit} running or waiting at most"
        )

    def faults(self) -> Sequence[str]:
        """None but the checks'."""
        return ()

    def all_checks(self) -> list[Check]:
        """What must hold at each rate."""
        return list(self._checks())

    def _checks(self) -> Iterator[Check]:
        for times, rounds in zip(TIMES, self.rounds, strict=True):
            name = f"at {times:g} times capacity"
            offered = [one.offered for one in rounds]
            refused = sum(one.statuses[503] for one in offered)
            others = sum(sum(one.statuses.values()) - one.statuses[200] for one in offered) - refused
            latency = max((latency for one in offered for latency in one.latencies), default=0.0)
            kept = statistics.median(one.kept for one in rounds)
            yield Check(f"{name}: goodput / capacity", kept, GOODPUT, 1 / GOODPUT)
            yield Check(f"{name}: neither 200 nor 503", others, 0, 0)
            yield Check(f"{name}: refused", refused, 1, float("inf"))
            yield Check(f"{name}: without Retry-After", sum(one.without_retry_after for one in offered), 0, 0)
            yield Check(f"{name}: worst latency, s", latency, 0, self.deadline_s)
            worst = max(one.worst(self.limit) for one in rounds)
            yield Check(f"{name}: worst latency / a full queue's", worst, 0, SLACK)

    def to_json(self) -> dict[str, Any]:
        return {
            "queue_limit": self.limit,
            "rates": [
                [
                    {"capacity_tokens_per_second": round(one.before.goodput, 2), **one.offered.to_json()}
                    for one in rounds
                ]
                for rounds in self.rounds
            ],
            "checks": [check.to_json() for check in self.all_checks()],
        }


async def overload(
    client: httpx.AsyncClient, limit: int, deadline_s: float, seconds: float = SECONDS
) -> Overloaded:
    """Capacity first, after a warm-up, and again after each rate; the rates in turns."""
    await capacity(client, limit, seconds / 2)
    full = await capacity(client, limit, seconds)
    rounds: list[list[Round]] = [[] for _ in TIMES]
    for _ in range(ROUNDS):
        for times, of_rate in zip(TIMES, rounds, strict=True):
            rate = times * full.goodput / statistics.fmean(TOKENS)
            offered = await offer(client, rate, seconds)
            before, full = full, await capacity(client, limit, seconds)
            of_rate.append(Round(before, offered, full))
    return Overloaded(limit, deadline_s, rounds)
