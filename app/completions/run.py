"""One request on the engine: its prompts side by side, their steps in one stream, each sample under its
choice index.

Choice `prompt * n + sample` is the order that OpenAI's answer has. Nothing here knows JSON or HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from app.completions.prompts import EncoderPrompt
from app.engine import Engine, EngineFailure, GenerateRequest, InvalidRequest, Sampling, Step

Steps = AsyncGenerator[tuple[int, Step], None]


@dataclass(frozen=True, slots=True)
class Job:
    """A checked completion request, ready for the engine. `id` is the response's, `key` unique in the
    process.
    """

    id: str
    key: str
    prompts: Sequence[EncoderPrompt]
    sampling: Sampling
    stream: bool
    session_id: str | None = None

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.sampling.n

    @property
    def prompt_tokens(self) -> int:
        """Encoder tokens of all prompts together."""
        return sum(len(prompt.ids) for prompt in self.prompts)


@asynccontextmanager
async def steps_of(engine: Engine, job: Job) -> AsyncIterator[Steps]:
    """The job's steps as `(prompt index, step)`; leaving the block aborts whatever still runs."""
    streams = [
        engine.generate(
            GenerateRequest(f"{job.key}-{i}", prompt.ids, job.sampling, job.stream, job.session_id)
        )
        for i, prompt in enumerate(job.prompts)
    ]
    source = _single(streams[0], job.sampling) if len(streams) == 1 else _merged(streams, job.sampling)
    async with aclosing(source):
        yield source


async def _single(stream: AsyncGenerator[Step, None], sampling: Sampling) -> Steps:
    async with aclosing(stream):
        async for step in stream:
            yield 0, _sound(step, sampling)


async def _merged(streams: list[AsyncGenerator[Step, None]], sampling: Sampling) -> Steps:
    """Bounded, so that a slow reader slows the pumps and the engine merges steps instead of piling them up
    here.
    """
    queue: asyncio.Queue[tuple[int, Step | BaseException | None]] = asyncio.Queue(maxsize=len(streams))

    async def pump(index: int, stream: AsyncGenerator[Step, None]) -> None:
        try:
            async with aclosing(stream):
                async for step in stream:
                    await queue.put((index, step))
            await queue.put((index, None))
        except Exception as error:
            await queue.put((index, error))

    pumps = [asyncio.create_task(pump(i, stream)) for i, stream in enumerate(streams)]
    open_streams = len(streams)
    try:
        while open_streams:
            index, item = await queue.get()
            if item is None:
                open_streams -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield index, _sound(item, sampling)
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


def _sound(step: Step, sampling: Sampling) -> Step:
    for sample in step.samples:
        if sample.finish_reason == "error":
            if sampling.structured is not None:
                # What vLLM's checks at the door let through and its compiler or matcher then refuses.
                raise InvalidRequest(
                    "the engine cannot compile or follow this constraint", "structured_outputs"
                )
            raise EngineFailure("the engine ended the request with an error")
    return step
