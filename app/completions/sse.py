"""The answer as server-sent events: one event an engine output, then usage if asked for, then `[DONE]`.

The first output is awaited before the headers go out, so that a request which the engine refuses gets a real status
instead of 200 and an error event. What fails later can only be said in the stream, and ends it properly.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable

from starlette.types import Send

from app.completions.choices import ChoiceWriter
from app.completions.reply import usage_of, wire
from app.completions.request import CompletionRequest
from app.completions.run import Job, steps_of
from app.engine import Engine, EngineFailure
from app.errors import ApiError, ClientGone, envelope

log = logging.getLogger("app.completions")

_DATA, _END = b"data: ", b"\n\n"
DONE = _DATA + b"[DONE]" + _END
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
LAST_WORDS_S = 5.0
"""Seconds that a client may take to read the end of a broken stream before it is cut."""


class EventStream:
    """Sends one request's events. `started` tells whether a status can still be chosen."""

    def __init__(self, send: Send, request: CompletionRequest, job: Job, writer: ChoiceWriter) -> None:
        options = request.stream_options
        self._send, self._job, self._writer = send, job, writer
        self._last_usage = bool(options and options.include_usage)
        self._each_usage = bool(options and options.continuous_usage_stats)
        # What all chunks share is encoded once a request.
        self._head = _DATA + json.dumps(job.head, separators=(",", ":")).encode()[:-1] + b',"choices":['
        self.started = False

    async def run(self, engine: Engine) -> None:
        """From the engine's first output to `[DONE]`."""
        async with steps_of(engine, self._job) as steps:
            async for prompt, step in steps:
                if choices := list(self._writer.write(prompt, step)):
                    await self._send_choices(choices)
        if not self.started:
            raise EngineFailure("the engine ended the request without an output")
        end = _DATA + wire(self._writer.last()) + _END + DONE if self._last_usage else DONE
        await self._send({"type": "http.response.body", "body": end, "more_body": False})

    async def break_off(self, error: ApiError) -> None:
        """Ends a started stream with an error event, unless nobody is there to read it."""
        if isinstance(error, ClientGone):
            return
        body = _DATA + json.dumps(envelope(error)).encode() + _END + DONE
        try:
            async with asyncio.timeout(LAST_WORDS_S):
                await self._send({"type": "http.response.body", "body": body, "more_body": False})
        except TimeoutError:
            log.warning("%s: the client did not read the end of its stream", self._job.id)

    async def _send_choices(self, choices: Iterable[tuple[int, bytes]]) -> None:
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        head = self._head
        events = b"".join([b"%b%b]%b}\n\n" % (head, choice, self._usage(index)) for index, choice in choices])
        await self._send({"type": "http.response.body", "body": events, "more_body": True})

    def _usage(self, choice: int) -> bytes:
        """What follows the choices of a chunk."""
        if self._each_usage:
            i = choice // self._job.sampling.n
            tokens, cached = self._writer.tokens[choice], self._writer.cached.get(i)
            return b',"usage":' + wire(usage_of(len(self._job.prompts[i].ids), tokens, cached_tokens=cached))
        return b',"usage":null' if self._last_usage else b""
