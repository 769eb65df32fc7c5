"""The load of one cell: warm-up, then every prompt once, a fixed number of requests under way at any time.

Warm-up requests are in no number: throughput begins, and counters are read, after the last of them ended.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from app.bench.client import Reply, Sampling, Target
from app.bench.counters import Reading, settled
from app.bench.errors import BenchError

Send = Callable[[str], Awaitable[Reply]]


@dataclass(slots=True)
class Load:
    """What was measured so far; whole once `ended` is set. `replies` are in the prompts' order, None where
    none came yet; times are seconds of the event loop's clock.
    """

    concurrency: int
    warmup: int
    replies: list[Reply | None] = field(default_factory=list)
    began: float | None = None
    ended: float | None = None
    before: Reading | None = None
    after: Reading | None = None

    @property
    def seconds(self) -> float | None:
        """From the first measured request's start to the end, or to the last chunk while there is no end."""
        chunks = [reply.timing.chunks[-1] for reply in self.replies if reply and reply.timing.chunks]
        end = self.ended if self.ended is not None else max(chunks, default=None)
        return end - self.began if self.began is not None and end is not None else None


def warmups(asked: int, concurrency: int) -> int:
    """Warm-up requests of a cell: as many as asked, and never fewer than run at once."""
    return max(asked, concurrency)


async def run(
    load: Load, target: Target, prompts: Sequence[str], sampling: Sampling, on_reply: Callable[[], None]
) -> None:
    """Fills `load`, which keeps what it has when this is cancelled; `on_reply` is called after each reply.

    Raises:
        BenchError: no warm-up request was answered.
    """
    warm: list[Reply] = []
    send = partial(target.complete, sampling=sampling)
    first = itertools.islice(itertools.cycle(prompts), load.warmup)
    await _each(first, load.concurrency, send, lambda _, reply: warm.append(reply))
    if warm and all(reply.error is not None for reply in warm):
        raise BenchError(f"{target.client.base_url}: every warm-up request failed: {warm[0].error}")
    load.before = await settled(target.client)
    load.replies = [None] * len(prompts)
    clock = asyncio.get_running_loop().time

    def keep(position: int, reply: Reply) -> None:
        load.replies[position] = reply
        on_reply()

    load.began = clock()
    await _each(prompts, load.concurrency, send, keep)
    load.ended = clock()
    load.after = await settled(target.client)


async def _each(
    prompts: Iterable[str], concurrency: int, send: Send, take: Callable[[int, Reply], None]
) -> None:
    waiting = enumerate(prompts)

    async def worker() -> None:
        for position, prompt in waiting:
            take(position, await send(prompt))

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(worker())
