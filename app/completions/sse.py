"""The answer as server-sent events: one event an engine output, then usage if asked for, then `[DONE]`.

The first output is awaited before the headers go out, so that a request which the engine refuses gets a real
status instead of 200 and an error event. What fails later can only be told in the stream, and ends it
properly.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable

from starlette.types import Send

from app.completions.choices import ChoiceWriter
from app.completions.protocol import CompletionRequest
from app.completions.reply import Completion, usage_of, wire
from app.completions.run import Job, steps_of
from app.engine import Engine, EngineFailure
from app.errors import ApiError, ClientGone, envelope

log = logging.getLogger("app.completions")

DONE = b"data: [DONE]\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
LAST_WORDS_S = 5.0
"""Seconds that a client may take to read the end of a broken stream before it is cut."""


class Frames:
    """Chunks as SSE frames. The part that all chunks share is encoded once a request."""

    def __init__(self, job: Job, model: str, created: int) -> None:
        shared = {"id": job.id, "object": "text_completion", "created": created, "model": model}
        self._shared = Completion(**shared, choices=[])
        self._head = b"data: " + json.dumps(shared, separators=(",", ":")).encode()[:-1] + b',"choices":['

    def chunk(self, choice: bytes, usage: bytes = b"") -> bytes:
        """One choice, as JSON; `usage` is what follows the choices, such as `,"usage":null`."""
        return b"%b%b]%b}\n\n" % (self._head, choice, usage)

    def last(self, job: Job, writer: ChoiceWriter) -> bytes:
        """The chunk without choices that carries the request's usage and metrics."""
        metrics = writer.metrics()
        answer = self._shared.model_copy(
            update={"usage": usage_of(job.prompt_tokens, writer.completion_tokens, metrics)}
        )
        if metrics is not None:
            answer.metrics = metrics
        return b"data: " + wire(answer) + b"\n\n"


class EventStream:
    """Sends one request's events. `started` tells whether a status can still be chosen."""

    def __init__(
        self, send: Send, request: CompletionRequest, job: Job, writer: ChoiceWriter, frames: Frames
    ) -> None:
        options = request.stream_options
        self._send, self._job, self._writer, self._frames = send, job, writer, frames
        self._last_usage = bool(options and options.include_usage)
        self._each_usage = bool(options and options.continuous_usage_stats)
        self.started = False

    async def run(self, engine: Engine) -> None:
        """From the engine's first output to `[DONE]`."""
        if self._job.sampling.max_tokens == 0:
            for prompt, step in self._writer.empty_steps():
                await self._send_choices(self._writer.write_json(prompt, step))
        else:
            async with steps_of(engine, self._job) as steps:
                async for prompt, step in steps:
                    if choices := self._writer.write_json(prompt, step):
                        await self._send_choices(choices)
        if not self.started:
            raise EngineFailure("the engine ended the request without an output")
        end = self._frames.last(self._job, self._writer) + DONE if self._last_usage else DONE
        await self._send({"type": "http.response.body", "body": end, "more_body": False})

    async def break_off(self, error: ApiError) -> None:
        """Ends a started stream with an error event, unless nobody is there to read it."""
        if isinstance(error, ClientGone):
            return
        body = b"data: " + json.dumps(envelope(error)).encode() + b"\n\n" + DONE
        try:
            async with asyncio.timeout(LAST_WORDS_S):
                await self._send({"type": "http.response.body", "body": body, "more_body": False})
        except TimeoutError:
            log.warning("%s: the client did not read the end of its stream", self._job.id)

    async def _send_choices(self, choices: Iterable[tuple[int, bytes]]) -> None:
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        events = b"".join([self._frames.chunk(choice, self._usage(index)) for index, choice in choices])
        await self._send({"type": "http.response.body", "body": events, "more_body": True})

    def _usage(self, choice: int) -> bytes:
        if self._each_usage:
            prompt = self._job.prompts[choice // self._job.sampling.n]
            return b',"usage":' + wire(usage_of(len(prompt.ids), self._writer.tokens[choice]))
        return b',"usage":null' if self._last_usage else b""
