"""Sends the cases of a soak, so many at a time, and compares each reply as it ends."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import httpx

from app.bench.sse import DONE, EventParser
from benchmarks.soak.answers import Answer, beginning, difference
from benchmarks.soak.cases import COMPLETIONS, DRAFT_LENGTH, Case

HEADERS = {"Content-Type": "application/json"}
TIMEOUT_S = 120.0
"""Until a request counts as lost."""
WAITS_S = 0.03
"""At most, before a client leaves that has sent its request."""
SHOWN = 20
"""Faults that are kept in words."""


@dataclass(slots=True)
class Seen:
    """What the clients saw. `replies` counts by path and status, `left` by path the requests whose client left; `lost`
    ended without a reply. `faults` are replies that differ, in words.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    replies: Counter[tuple[str, int]] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    wrong: int = 0
    faults: list[str] = field(default_factory=list)
    sequences: int = 0
    """Of the requests that were answered in whole."""
    stopped_sequences: int = 0
    """Of them, those that may end by a stop string, after which an engine step or two may follow."""
    left_sequences: int = 0
    left_tokens: int = 0
    """That the engine may have made for clients that left, at most."""
    tokens: int = 0
    accepted: int = 0

    def fault(self, case: Case, words: str) -> None:
        self.wrong += 1
        if len(self.faults) < SHOWN:
            self.faults.append(f"{case.kind}: {words} [{case.content[:300].decode(errors='replace')}]")

    def gone(self, case: Case) -> None:
        assert not isinstance(case.body, bytes)
        self.left[case.path] += 1
        self.left_sequences += case.sequences
        self.left_tokens += case.sequences * int(case.body["max_tokens"])


async def send(client: httpx.AsyncClient, case: Case) -> Answer:
    """The answer; of a client that leaves, what it has seen until then."""
    if not case.streams:
        reply = await client.post(case.path, content=case.content, headers=HEADERS)
        return Answer.of(reply.status_code, reply.content)
    answer, events, parser = Answer(200), 0, EventParser()
    async with client.stream("POST", case.path, content=case.content, headers=HEADERS) as reply:
        if reply.status_code != httpx.codes.OK:
            return Answer.of(reply.status_code, await reply.aread())
        async for portion in reply.aiter_bytes():
            for event in parser.feed(portion):
                if event == DONE:
                    answer.ended = True
                    continue
                answer.take(json.loads(event))
                events += 1
                if events == case.leaves_after:
                    return answer
    return answer


async def leave(url: httpx.URL, case: Case, wait_s: float, hard: bool) -> None:
    """Sends a whole request and goes away; `hard` without a farewell (RST)."""
    _, writer = await asyncio.open_connection(url.host, url.port)
    head = f"POST {case.path} HTTP/1.1\r\nHost: soak\r\nContent-Type: application/json\r\nContent-Length: "
    writer.write(f"{head}{len(case.content)}\r\n\r\n".encode() + case.content)
    await writer.drain()
    await asyncio.sleep(wait_s)
    if hard:
        writer.transport.abort()
    writer.close()


async def answers_alone(client: httpx.AsyncClient, cases: Sequence[Case]) -> dict[bytes, Answer]:
    """By content of `Case.alone`: each different one is sent once, after the one before has ended."""
    answers: dict[bytes, Answer] = {}
    for case in cases:
        if case.path != DRAFT_LENGTH and (one := case.alone).content not in answers:
            answers[one.content] = await send(client, one)
    return answers


async def _one(
    client: httpx.AsyncClient, case: Case, alone: Mapping[bytes, Answer], seen: Seen, draw: random.Random
) -> None:
    if case.leaves_after == 0:
        await leave(client.base_url, case, draw.uniform(0, WAITS_S), draw.random() < 0.5)
        seen.gone(case)
        return
    answer = await send(client, case)
    if case.leaves_after and not answer.ended and answer.status == httpx.codes.OK:
        seen.gone(case)
        if words := beginning(alone[case.alone.content], answer):
            seen.fault(case, words)
        return
    seen.replies[case.path, answer.status] += 1
    if answer.status == httpx.codes.OK and case.path == COMPLETIONS:
        seen.sequences += case.sequences
        seen.stopped_sequences += case.sequences if case.stops else 0
        seen.tokens += answer.tokens
        seen.accepted += answer.accepted
    if case.path == DRAFT_LENGTH:
        asked = json.loads(case.content)["k"]
        if answer.status != httpx.codes.OK or answer.other["asked"] != asked:
            seen.fault(case, f"{answer.status} {answer.other}")
    elif words := difference(alone[case.alone.content], answer, case.exact):
        seen.fault(case, words)


async def soak(
    client: httpx.AsyncClient,
    cases: Sequence[Case],
    alone: Mapping[bytes, Answer],
    at_once: int,
    after: Callable[[int], Awaitable[None]],
    seed: int = 0,
) -> Seen:
    """Sends the cases in their order; `after` is called with how many have ended, once each."""
    seen, draw, order, ended = Seen(), random.Random(seed), iter(cases), 0

    async def client_loop() -> None:
        nonlocal ended
        for case in order:
            seen.kinds[case.kind] += 1
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await _one(client, case, alone, seen, draw)
            except (TimeoutError, httpx.HTTPError, OSError) as error:
                seen.lost += 1
                seen.fault(case, f"lost: {type(error).__name__} {error}")
            except (ValueError, LookupError, TypeError) as error:
                seen.fault(case, f"not understood: {type(error).__name__} {error}")
            ended += 1
            await after(ended)

    await asyncio.gather(*(client_loop() for _ in range(at_once)))
    return seen
