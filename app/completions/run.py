"""One request on the engine: its prompts side by side, their steps in one stream, each sample under its choice index.

Choice `prompt * n + sample` is the order that OpenAI's answer has. Nothing here knows JSON or HTTP.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from app.completions.prompts import EncoderPrompt
from app.engine import Engine, EngineFailure, GenerateRequest, InvalidRequest, Sample, Sampling, Step

if TYPE_CHECKING:  # it imports OpenTelemetry, which nobody pays for who has no traces
    from app.completions.trace import RequestTrace

Steps = AsyncGenerator[tuple[int, Step], None]


@dataclass(frozen=True, slots=True)
class Job:
    """A checked completion request, ready for the engine. `id`, `model` and `created` (Unix time, seconds) are the
    response's; `key` is unique in the process.
    """

    id: str
    model: str
    created: int
    prompts: Sequence[EncoderPrompt]
    sampling: Sampling
    stream: bool
    session_id: str | None = None
    trace: RequestTrace | None = None
    key: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")

    @property
    def head(self) -> dict[str, Any]:
        """What the body, or every chunk of the stream, begins with."""
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.sampling.n

    @property
    def prompt_tokens(self) -> int:
        """Encoder tokens of all prompts together."""
        return sum(len(prompt.ids) for prompt in self.prompts)


@asynccontextmanager
async def steps_of(engine: Engine, job: Job) -> AsyncIterator[Steps]:
    """The job's steps as `(prompt index, step)`; leaving the block aborts whatever still runs. With nothing to generate
    (echo at max_tokens 0) the engine is not asked.
    """
    if job.sampling.max_tokens == 0:
        source = _ended(job)
    else:
        headers = None if job.trace is None else job.trace.headers
        requests = [
            GenerateRequest(f"{job.key}-{i}", prompt.ids, job.sampling, job.stream, job.session_id, headers)
            for i, prompt in enumerate(job.prompts)
        ]
        streams = [engine.generate(request) for request in requests]
        source = _single(streams[0], job.sampling) if len(streams) == 1 else _merged(streams, job.sampling)
    if job.trace is not None:
        source = job.trace.watched(source)
    async with aclosing(source):
        yield source


async def _ended(job: Job) -> Steps:
    for prompt in range(len(job.prompts)):
        yield prompt, Step([Sample(i, "", (), finish_reason="length") for i in range(job.sampling.n)], True)


async def _single(stream: AsyncGenerator[Step, None], sampling: Sampling) -> Steps:
    async with aclosing(stream):
        async for step in stream:
            yield 0, _sound(step, sampling)


async def _merged(streams: list[AsyncGenerator[Step, None]], sampling: Sampling) -> Steps:
    """Bounded, so that a slow reader slows the pumps and the engine merges steps instead of piling them up here."""
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
            if sampling.structured_outputs is not None:
                # What vLLM's checks at the door let through and its compiler or matcher then refuses.
                raise InvalidRequest(
                    "the engine cannot compile or follow this constraint", "structured_outputs"
                )
            raise EngineFailure("the engine ended the request with an error")
    return step
