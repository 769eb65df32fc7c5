"""What a request's span tells: what was asked for, where its time went, what came of the draft.

Names are those of OpenTelemetry's conventions for generative AI (`gen_ai.*`) where these have one. No text is told.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from app.completions.choices import ChoiceWriter
from app.completions.metrics import speculative_decoding
from app.completions.request import CompletionRequest
from app.completions.run import Job
from app.engine import RequestTiming, Step
from app.tracing import SERVICE, RequestSpan

_ASKED = ("max_tokens", "temperature", "top_p", "top_k", "seed", "frequency_penalty", "presence_penalty")


class RequestTrace:
    """Adds to the span of one request. Its methods cost little where the span is not sampled."""

    def __init__(self, own: RequestSpan, request: CompletionRequest) -> None:
        self._own, self.headers = own, own.headers
        self._ends: list[str] = []
        self._set(
            {
                "gen_ai.operation.name": "text_completion",
                "gen_ai.provider.name": SERVICE,
                "gen_ai.request.model": request.model,
                "gen_ai.request.stream": bool(request.stream),
                "gen_ai.request.choice.count": request.n,
            }
        )

    def _set(self, values: Mapping[str, str | int | float | list[str] | None]) -> None:
        self._own.span.set_attributes({name: value for name, value in values.items() if value is not None})

    async def watched(
        self, steps: AsyncGenerator[tuple[int, Step], None]
    ) -> AsyncGenerator[tuple[int, Step], None]:
        """The steps as they are; what they tell is kept."""
        async with aclosing(steps):
            async for prompt, step in steps:
                if step.timing is not None:
                    self._parts(prompt, step.timing)
                self._ends += [one.finish_reason for one in step.samples if one.finish_reason is not None]
                yield prompt, step

    def _parts(self, prompt: int, timing: RequestTiming) -> None:
        """The engine's durations, back from now, when its last token is here."""
        end = time.time_ns()
        parts = {"decode": timing.decode_s, "encode": timing.first_token_s, "queue": timing.queue_s}
        for name, seconds in parts.items():
            begin = end - int((seconds or 0) * 1e9)
            if seconds is not None:
                self._own.child(name, begin, end, {"t5gemma2.prompt": prompt})
            if name == "decode" and seconds is not None:
                self._own.span.add_event("first token", {"t5gemma2.prompt": prompt}, timestamp=begin)
            end = begin

    def answered(self, job: Job, writer: ChoiceWriter) -> None:
        """At the request's end, well or badly: what was sampled with, what its client received."""
        spec = speculative_decoding(writer.spec, "summary")
        self._set({f"gen_ai.request.{name}": getattr(job.sampling, name) for name in _ASKED})
        self._set(
            {
                "gen_ai.response.id": job.id,
                "gen_ai.response.model": job.model,
                "gen_ai.response.finish_reasons": self._ends or None,
                "gen_ai.usage.input_tokens": job.prompt_tokens,
                "gen_ai.usage.output_tokens": writer.completion_tokens,
                "gen_ai.usage.cache_read.input_tokens": writer.cached_tokens,
            }
        )
        if spec is not None:
            self._set(
                {
                    "t5gemma2.draft.k": spec.num_spec_tokens,
                    "t5gemma2.draft.steps": spec.num_spec_steps,
                    "t5gemma2.draft.tokens": spec.num_draft_tokens,
                    "t5gemma2.draft.accepted_tokens": spec.num_accepted_draft_tokens,
                    "t5gemma2.draft.acceptance_rate": spec.draft_acceptance_rate,
                    "t5gemma2.draft.mean_acceptance_length": spec.mean_acceptance_length,
                }
            )
