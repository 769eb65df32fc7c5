"""From a checked request to the port's `Sampling`: defaults of the model filled in, the output cut to the budget."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from app.completions.constraints import constraint_of
from app.completions.request import CompletionRequest
from app.completions.rules import held_back
from app.engine import EngineFacts, Sampling, Tokenizer
from app.text.bad_words import banned
from app.text.tokenizing import TokenizerPool


async def bans_of(
    request: CompletionRequest, tokenizer: Tokenizer, facts: EngineFacts, pool: TokenizerPool
) -> list[list[int]]:
    """The request's bad words as token sequences.

    Raises:
        InvalidRequest: they cannot be banned (param `bad_words`).
    """
    words, allowed = request.bad_words, request.allowed_token_ids
    if not words:
        return []
    bans = await pool.submit(0, banned, words, tokenizer, allowed, held_back(request, facts))
    return [ids for ids in bans if max(ids) < facts.vocab_size]  # a tokenizer may know more tokens


def sampling_of(
    request: CompletionRequest, facts: EngineFacts, bans: list[list[int]], compact_json: bool
) -> Sampling:
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
    chosen["bad_words"] = bans
    chosen["structured_outputs"] = constraint_of(request, compact_json)
    chosen["logit_bias"] = {int(token): bias for token, bias in (request.logit_bias or {}).items()} or None
    if detection := request.repetition_detection:
        chosen["repetition_detection"] = detection.model_dump(include=set(type(detection).model_fields))
    return Sampling(**chosen)


def draws_by_seed(sampling: Sampling) -> bool:
    """Whether the same request is to draw the same text again."""
    return sampling.seed is not None and sampling.temperature > 0
