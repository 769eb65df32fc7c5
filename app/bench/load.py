"""The load of one cell: warm-up, then every prompt once, a fixed number of requests under way at any time.

Warm-up requests are in no number: throughput begins, and counters are read, after the last of them ended.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from app.bench.arithmetic import covered
from app.bench.client import Sampling, Target
from app.bench.counters import Reading, settled
from app.bench.errors import BenchError
from app.bench.reply import Reply, causes, in_words

log = logging.getLogger("app.bench")


@dataclass(slots=True)
class Load:
    """What was measured so far, all of it once `whole`. `replies` are in the prompts' order, None where none came yet;
    times are seconds of the event loop's clock.
    """

    concurrency: int
    warmup: int
    replies: list[Reply | None] = field(default_factory=list)
    began: float | None = None
    ended: float | None = None
    before: Reading | None = None
    after: Reading | None = None
    whole: bool = False

    @property
    def seconds(self) -> float | None:
        """What rates divide by: from the first measured request's start to the end (to that of the last reply, while
        there is none), without the time in which nothing but failing requests was under way.
        """
        replies = [reply for reply in self.replies if reply is not None]
        spans = [(reply.cause, (reply.timing.sent, reply.timing.over or 0.0)) for reply in replies]
        end = self.ended if self.ended is not None else max((over for _, (_, over) in spans), default=None)
        if self.began is None or end is None:
            return None
        wasted = covered(span for _, span in spans) - covered(span for cause, span in spans if cause is None)
        return end - self.began - wasted


def warmups(asked: int, concurrency: int) -> int:
    """Warm-up requests of a cell: as many as asked, and never fewer than run at once."""
    return max(asked, concurrency)


async def run(
    load: Load, target: Target, prompts: Sequence[str], sampling: Sampling, on_reply: Callable[[], None]
) -> None:
    """Fills `load`, which keeps what it has when this is cancelled; `on_reply` is called after each reply.

    Raises:
        BenchError: no warm-up request was answered, or the server was lost.
    """
    warm: list[Reply] = []
    first = itertools.islice(itertools.cycle(prompts), load.warmup)
    await _each(target, sampling, first, load.concurrency, lambda _, reply: warm.append(reply))
    if warm and all(reply.cause is not None for reply in warm):
        raise BenchError(f"{target.client.base_url}: every warm-up request failed: {warm[0].error}")
    if failed := causes(warm):
        log.warning("warm-up requests failed: %s", in_words(failed))
    load.before = await settled(target.client)
    load.replies = [None] * len(prompts)
    clock = asyncio.get_running_loop().time

    def keep(position: int, reply: Reply) -> None:
        load.replies[position] = reply
        on_reply()

    load.began = clock()
    await _each(target, sampling, prompts, load.concurrency, keep)
    load.ended = clock()
    load.after = await settled(target.client)
    load.whole = True


async def _each(
    target: Target,
    sampling: Sampling,
    prompts: Iterable[str],
    concurrency: int,
    take: Callable[[int, Reply], None],
) -> None:
    waiting = enumerate(prompts)

    async def worker() -> None:
        for position, prompt in waiting:
            reply = await target.complete(prompt, sampling)
            take(position, reply)
            # A server that is gone ends the load; it does not fail all that is left of it.
            if reply.server_in_doubt:
                await target.confirm()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(worker())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
