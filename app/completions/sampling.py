"""From a checked request to the port's `Sampling`: defaults of the model filled in, the output cut to the budget."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from app.completions.constraints import constraint_of
from app.completions.request import CompletionRequest
from app.engine import EngineFacts, Sampling


def sampling_of(request: CompletionRequest, facts: EngineFacts) -> Sampling:
    """Request, else generation config, else the port's default; max_tokens is cut to what the decoder has room for.

    The budget is the decoder's own: one start token and the output share max_model_len, whatever the prompt's length.
    """
    chosen: dict[str, Any] = {}
    for field in fields(Sampling):
        asked = getattr(request, field.name)
        default = facts.default_sampling.get(field.name, field.default)
        chosen[field.name] = default if asked is None else asked
    if facts.has_draft and request.min_p is None:
        chosen["min_p"] = 0.0
    chosen["max_tokens"] = min(request.output_limit, facts.max_model_len - 1)
    chosen["structured_outputs"] = constraint_of(request)
    chosen["logit_bias"] = {int(token): bias for token, bias in (request.logit_bias or {}).items()} or None
    if detection := request.repetition_detection:
        chosen["repetition_detection"] = detection.model_dump(include=set(type(detection).model_fields))
    return Sampling(**chosen)


def draws_by_seed(sampling: Sampling) -> bool:
    """Whether the same request is to draw the same text again."""
    return sampling.seed is not None and sampling.temperature > 0
