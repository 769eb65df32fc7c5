"""One completion request from the checked model to the last byte: admission, prompts, engine, reply.

It is an ASGI response rather than a function of the route, because waiting in the queue, generating and sending must
share one lifetime: a client that leaves in any of them ends all of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.completions.choices import ChoiceWriter
from app.completions.constraints import field_of
from app.completions.metrics import RequestMetrics
from app.completions.prompts import encoder_prompts
from app.completions.request import CompletionRequest
from app.completions.run import Job, steps_of
from app.completions.sampling import bans_of, draws_by_seed, sampling_of
from app.completions.sse import EventStream
from app.engine import Engine, EngineDead, InvalidRequest
from app.errors import ApiError, chain, note, to_api_error
from app.gateway import Gateway
from app.middleware import SPAN
from app.scope import RequestScope

if TYPE_CHECKING:
    from app.completions.trace import RequestTrace

log = logging.getLogger("app.completions")


class Answer(Response):
    """Runs a checked request when it is sent. Before the first byte it raises; after it, it ends the stream itself."""

    def __init__(self, gateway: Gateway, request: CompletionRequest, request_id: str) -> None:
        """`request_id` is the client's or a fresh one; two requests may share it."""
        self.background = None
        self._gateway, self._request = gateway, request
        self._id = f"cmpl-{request_id}"
        self._created = int(time.time())
        self._job: Job | None = None
        self._writer: ChoiceWriter | None = None
        self._stream: EventStream | None = None
        self._trace: RequestTrace | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (span := scope["state"].get(SPAN)) is not None:
            from app.completions.trace import RequestTrace

            self._trace = RequestTrace(span, self._request)
        try:
            await self._answer(receive, send, scope)
        except Exception as error:
            answer = to_api_error(error)
            known = isinstance(error, ApiError | EngineDead)  # its death is logged once
            if answer.status >= 500 and not known:
                log.error("%s: %s", self._id, chain(error))
            if self._stream is None or not self._stream.started:
                raise answer from error  # logged above, and the layers outside log what is no ApiError
            scope["state"]["broken"] = answer.status
            note(scope, answer)
            await self._stream.break_off(answer)
        finally:
            scope["state"]["log"].update(self._told())
            if self._trace is not None and self._job is not None and self._writer is not None:
                self._trace.answered(self._job, self._writer)

    async def _answer(self, receive: Receive, send: Send, scope: Scope) -> None:
        gateway, request = self._gateway, self._request
        with gateway.admission.enter(request.n * len(request.prompts)):
            # Once more, now that it counts as accepted: other checkpoints may have been asked for meanwhile.
            engine = gateway.engine()
            async with RequestScope(receive, gateway.settings.request_timeout_s, gateway.running):
                body = await self._run(send, engine)
        if body is not None:
            await Response(body, media_type="application/json")(scope, receive, send)

    async def _run(self, send: Send, engine: Engine) -> bytes | None:
        gateway, request = self._gateway, self._request
        bans = await bans_of(request, engine.tokenizer, engine.facts, gateway.tokenizing)
        job = self._job = Job(
            id=self._id,
            model=gateway.identity.model_name,
            created=self._created,
            prompts=await encoder_prompts(request, engine.tokenizer, engine.facts, gateway.tokenizing),
            sampling=sampling_of(request, engine.facts, bans, gateway.settings.disable_any_whitespace),
            stream=bool(request.stream),
            session_id=request.session_id,
            trace=self._trace,
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
            if error.param == "structured_outputs":
                error.param = field_of(request)
            raise

    def _told(self) -> dict[str, Any]:
        """What the request's line in the log has of it."""
        job, writer = self._job, self._writer
        metrics = (writer.metrics("summary") if writer is not None else None) or RequestMetrics()
        told = {
            "id": self._id,
            "stream": bool(self._request.stream),
            "prompts": len(self._request.prompts),
            "prompt_tokens": job and job.prompt_tokens,
            "completion_tokens": writer.completion_tokens if writer is not None else 0,
            "queue_ms": _rounded(metrics.queue_time_ms),
            "first_token_ms": _rounded(metrics.time_to_first_token_ms),
        }
        if (spec := metrics.speculative_decoding) is not None:
            told["acceptance_rate"] = _rounded(spec.draft_acceptance_rate)
            told["mean_acceptance_length"] = _rounded(spec.mean_acceptance_length)
            told["steps_by_k"] = spec.steps_by_k
        if self._gateway.settings.log_prompts:
            told["prompt"] = self._request.prompt
        return told


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


async def body_of(engine: Engine, job: Job, writer: ChoiceWriter) -> bytes:
    """Runs the job to its end: one step a prompt, which holds its samples whole."""
    choices: dict[int, bytes] = {}
    async with steps_of(engine, job) as steps:
        async for prompt, step in steps:
            for index, choice in writer.write(prompt, step):
                choices[index] = choice
                await asyncio.sleep(0)  # others may go on: one with many logprobs takes tens of milliseconds
    return writer.body([choices[index] for index in sorted(choices)])
