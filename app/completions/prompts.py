"""Text or ids -> the encoder's ids, checked against the encoder's budget before the engine hears of them."""

from __future__ import annotations

from dataclasses import dataclass

from app.completions.request import CompletionRequest
from app.engine import EngineFacts, InvalidRequest, Tokenizer
from app.text.tokenizing import TokenizerPool

FEW = 4096
"""Ids that are checked in the event loop; a longer list is a thread's work, as all text is."""


@dataclass(frozen=True, slots=True)
class EncoderPrompt:
    """One prompt: `ids` as the encoder gets them, `text` as echo returns it (None unless echo was asked for)."""

    ids: list[int]
    text: str | None = None


async def encoder_prompts(
    request: CompletionRequest, tokenizer: Tokenizer, facts: EngineFacts, pool: TokenizerPool
) -> list[EncoderPrompt]:
    """The request's prompts in order.

    Raises:
        InvalidRequest: the encoder cannot take one of them (param `prompt`).
    """
    items = request.prompts
    # In all: each prompt of many may be short, and tokenizing them in the loop is no thread's work.
    size = sum(map(len, items))
    if not request.echo and size < FEW and all(isinstance(item, list) for item in items):
        return [_prompt(item, request, tokenizer, facts) for item in items]
    jobs = [pool.submit(size, _prompt, item, request, tokenizer, facts) for item in items]
    try:
        return [await job for job in jobs]
    finally:
        for job in jobs:
            job.cancel()


def _prompt(
    item: str | list[int], request: CompletionRequest, tokenizer: Tokenizer, facts: EngineFacts
) -> EncoderPrompt:
    if isinstance(item, str):
        _refuse_hopeless(item, request, tokenizer, facts)
        ids = tokenizer.encode(item, request.add_special_tokens, _enough(request, tokenizer, facts))
    else:
        ids = item
    if ids and max(ids) >= facts.vocab_size:  # a tokenizer, too, may know more tokens than the model
        raise InvalidRequest(
            f"prompt: token id {max(ids)} is not below the vocabulary size {facts.vocab_size}", "prompt"
        )
    kept = _truncated(ids, request, tokenizer, facts)
    if not kept:
        raise InvalidRequest("prompt: gives no tokens", "prompt")
    if len(kept) > facts.max_encoder_len:
        some = " or more" if isinstance(item, str) else ""
        raise InvalidRequest(
            f"prompt: {len(kept)}{some} encoder tokens are more than max_encoder_len {facts.max_encoder_len}",
            "prompt",
        )
    if not request.echo:
        return EncoderPrompt(kept)
    whole = isinstance(item, str) and len(kept) == len(ids)
    return EncoderPrompt(kept, str(item) if whole else tokenizer.decode(kept, request.skip_special_tokens))


def _refuse_hopeless(text: str, request: CompletionRequest, tokenizer: Tokenizer, facts: EngineFacts) -> None:
    """A text with more characters than the longest tokens could hold is refused without tokenising it."""
    at_least = -(-len(text) // tokenizer.max_chars_per_token)
    if request.truncate_prompt_tokens is None and at_least > facts.max_encoder_len:
        raise InvalidRequest(
            f"prompt: {at_least} or more encoder tokens, above max_encoder_len {facts.max_encoder_len}",
            "prompt",
        )


def _enough(request: CompletionRequest, tokenizer: Tokenizer, facts: EngineFacts) -> int | None:
    """How many of a text's ids decide what becomes of it; None: all, since the last ones are kept. The text's end alone
    does not give these, for a run of letters divides by where it began.
    """
    keep = request.truncate_prompt_tokens
    if keep is None:
        return facts.max_encoder_len + 1
    if _side(request, tokenizer) == "left":
        return None
    return (facts.max_encoder_len if keep < 0 else keep) + 1


def _side(request: CompletionRequest, tokenizer: Tokenizer) -> str:
    """The side that is cut."""
    return request.truncation_side or tokenizer.truncation_side


def _truncated(
    ids: list[int], request: CompletionRequest, tokenizer: Tokenizer, facts: EngineFacts
) -> list[int]:
    keep = request.truncate_prompt_tokens
    if keep is None:
        return ids
    if keep < 0:
        keep = facts.max_encoder_len
    if keep >= len(ids):
        return ids
    # "left" keeps the last tokens, "right" the first: the side names what is cut.
    return ids[-keep:] if _side(request, tokenizer) == "left" else ids[:keep]
