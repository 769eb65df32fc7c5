"""One completion request from the checked model to the last byte: admission, prompts, engine, reply, log line.

It is an ASGI response rather than a function of the route, because waiting in the queue, generating and sending must
share one lifetime: a client that leaves in any of them ends all of them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import traceback

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.completions.choices import ChoiceWriter
from app.completions.prompts import encoder_prompts
from app.completions.request import CompletionRequest
from app.completions.run import Job, steps_of
from app.completions.sampling import bans_of, draws_by_seed, sampling_of
from app.completions.sse import EventStream
from app.engine import Engine, EngineDead, InvalidRequest
from app.errors import ApiError, to_api_error
from app.gateway import Gateway
from app.scope import RequestScope

log = logging.getLogger("app.completions")


class Answer(Response):
    """Runs a checked request when it is sent. Before the first byte it raises; after it, it ends the stream itself."""

    def __init__(self, gateway: Gateway, engine: Engine, request: CompletionRequest, request_id: str) -> None:
        """`request_id` is the client's or a fresh one; two requests may share it."""
        self.background = None
        self._gateway, self._engine, self._request = gateway, engine, request
        self._id = f"cmpl-{request_id}"
        self._created = int(time.time())
        self._job: Job | None = None
        self._writer: ChoiceWriter | None = None
        self._stream: EventStream | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.monotonic()
        status = 500  # which a cancellation that is none of ours leaves
        try:
            await self._answer(receive, send, scope)
            status = 200
        except Exception as error:
            answer = to_api_error(error)
            status = answer.status
            if status >= 500 and not isinstance(error, ApiError | EngineDead):  # its death is logged once
                log.error("%s: %s", self._id, _chain(error))
            if self._stream is None or not self._stream.started:
                raise answer from error  # logged above, and the layers outside log what is no ApiError
            scope["state"]["broken"] = status
            await self._stream.break_off(answer)
        finally:
            self._log(status, time.monotonic() - began)

    async def _answer(self, receive: Receive, send: Send, scope: Scope) -> None:
        gateway, request = self._gateway, self._request
        with gateway.admission.enter(request.n * len(request.prompts)):
            # Once more, now that it counts as accepted: other checkpoints may have been asked for meanwhile.
            self._engine = gateway.engine()
            async with RequestScope(receive, gateway.settings.request_timeout_s, gateway.running):
                body = await self._run(send)
        if body is not None:
            await Response(body, media_type="application/json")(scope, receive, send)

    async def _run(self, send: Send) -> bytes | None:
        gateway, request, engine = self._gateway, self._request, self._engine
        bans = await bans_of(request, engine.tokenizer, engine.facts, gateway.tokenizing)
        job = self._job = Job(
            id=self._id,
            model=gateway.identity.model_name,
            created=self._created,
            prompts=await encoder_prompts(request, engine.tokenizer, engine.facts, gateway.tokenizing),
            sampling=sampling_of(request, engine.facts, bans),
            stream=bool(request.stream),
            session_id=request.session_id,
        )
        level = request.request_metrics or gateway.settings.request_metrics
        writer = self._writer = ChoiceWriter(request, job, level, engine.tokenizer.special_ids)
        try:
            async with gateway.drafting.steady(draws_by_seed(job.sampling)):
                if not request.stream:
                    return await body_of(engine, job, writer)
                self._stream = EventStream(send, request, job, writer)
                await self._stream.run(engine)
                return None
        except InvalidRequest as error:
            if error.param == "structured_outputs" and request.structured_outputs is None:
                error.param = "response_format"
            raise

    def _log(self, status: int, seconds: float) -> None:
        job = self._job
        fields = {
            "id": self._id,
            "status": status,
            "stream": bool(self._request.stream),
            "prompts": len(job.prompts) if job else None,
            "prompt_tokens": job.prompt_tokens if job else None,
            "completion_tokens": self._writer.completion_tokens if self._writer else 0,
            "ms": round(seconds * 1000, 1),
        }
        if self._gateway.settings.log_prompts:
            fields["prompt"] = json.dumps(self._request.prompt, ensure_ascii=False)
        log.info("completion %s", " ".join(f"{k}={v}" for k, v in fields.items()), extra={"fields": fields})


def _chain(error: BaseException) -> str:
    """The types of an exception and its causes, and the frames of each; no message, for it may quote a prompt."""
    parts = []
    cause: BaseException | None = error
    while cause is not None:
        frames = traceback.extract_tb(cause.__traceback__)
        where = ", ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames)
        parts.append(f"{type(cause).__name__} ({where})" if where else type(cause).__name__)
        cause = cause.__cause__
    return " <- ".join(parts)


async def body_of(engine: Engine, job: Job, writer: ChoiceWriter) -> bytes:
    """Runs the job to its end: one step a prompt, which holds its samples whole."""
    choices: dict[int, bytes] = {}
    async with steps_of(engine, job) as steps:
        async for prompt, step in steps:
            for index, choice in writer.write(prompt, step):
                choices[index] = choice
                await asyncio.sleep(0)  # others may go on: one with many logprobs takes tens of milliseconds
    return writer.body([choices[index] for index in sorted(choices)])
