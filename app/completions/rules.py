"""What one field alone cannot decide: refusals that depend on other fields, on the model or on the draft.

Every rule runs before a header is sent and before anything reaches the engine, and every refusal names its field.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from app.completions.request import REFUSED, CompletionRequest
from app.engine import EngineFacts, InvalidRequest

log = logging.getLogger("app.completions")

_MAX_NAMES = 64
_MAX_DIGITS = 12
_named: set[str] = set()


def check(request: CompletionRequest, facts: EngineFacts) -> None:
    """The request can be served by an engine of these facts.

    Raises:
        InvalidRequest: the first rule that it breaks.
    """
    _refused_fields(request)
    _sequences(request)
    _lengths(request, facts)
    _vocabulary(request, facts.vocab_size)
    _something_left(request, facts)
    if facts.has_draft:
        _with_draft(request)
    _texts(request)
    _note_unknown(request)


def held_back(request: CompletionRequest, facts: EngineFacts) -> frozenset[int]:
    """Ids that are not generated at first, since the output has min_tokens to go."""
    return facts.end_ids.union(request.stop_token_ids or ()) if request.min_tokens else frozenset()


def _refused_fields(request: CompletionRequest) -> None:
    for name, reason in REFUSED.items():
        value = getattr(request, name)
        harmless = (
            value is None or value is False or value in ("", -1 if name == "thinking_token_budget" else None)
        )
        if not harmless and value != CompletionRequest.model_fields[name].default:
            raise InvalidRequest(f"{name} is not supported: {reason}", name)


def _refuse(name: str, wrong: bool, why: str) -> None:
    if wrong:
        raise InvalidRequest(why, name)


def _sequences(request: CompletionRequest) -> None:
    n, best = request.n, request.best_of
    _refuse("prompt", request.prompt is None, "prompt: must be given")
    _refuse("best_of", best not in (None, n), f"best_of {best} must equal n {n}: samples are not ranked")
    greedy = request.temperature == 0
    _refuse("n", n > 1 and greedy, f"n must be 1 when using greedy sampling, got {n}")
    alone = request.stream_options is not None and not request.stream
    _refuse("stream_options", alone, "stream_options can only be given with stream: true")
    scored = bool(request.echo) and request.logprobs is not None
    _refuse("echo", scored, "echo with logprobs is not supported: the encoder's tokens have no logprobs")
    ids = request.logprob_token_ids
    alone = ids is not None and request.logprobs is None
    _refuse("logprob_token_ids", alone, "logprob_token_ids needs logprobs")
    _refuse("logprob_token_ids", ids == [], "logprob_token_ids must not be empty")


def _lengths(request: CompletionRequest, facts: EngineFacts) -> None:
    limit, least, kept = request.output_limit, request.min_tokens, request.truncate_prompt_tokens
    longest, widest = facts.max_model_len, facts.max_encoder_len
    _refuse("max_tokens", limit == 0 and not request.echo, "max_tokens must be at least 1, or 0 with echo")
    _refuse("min_tokens", least > limit, f"min_tokens {least} is above max_tokens {limit}")
    above = f"min_tokens {least} + 1 start token is above max_model_len {longest}"
    _refuse("min_tokens", least + 1 > longest, above)
    name = "truncate_prompt_tokens"
    _refuse(name, kept == 0, f"{name} 0 would leave an empty prompt")
    _refuse(name, kept is not None and kept > widest, f"{name} {kept} is above max_encoder_len {widest}")


def _vocabulary(request: CompletionRequest, vocab_size: int) -> None:
    _within("stop_token_ids", request.stop_token_ids or (), vocab_size)
    _within("logprob_token_ids", request.logprob_token_ids or (), vocab_size)
    _refuse("allowed_token_ids", request.allowed_token_ids == [], "allowed_token_ids must not be empty")
    _within("allowed_token_ids", request.allowed_token_ids or (), vocab_size)
    for key in request.logit_bias or ():
        # Bounded, since int() refuses thousands of digits, zeros in front too.
        readable = key.isascii() and key.isdigit() and len(key) <= _MAX_DIGITS
        _refuse("logit_bias", not readable, f"logit_bias: {key[:32]!r} is no token id")
    _within("logit_bias", [*map(int, request.logit_bias or ())], vocab_size)


def _something_left(request: CompletionRequest, facts: EngineFacts) -> None:
    """Where nothing is left, an engine writes pads."""
    allowed = request.allowed_token_ids
    _refuse(
        "min_tokens",
        allowed is not None and held_back(request, facts).issuperset(allowed),
        f"min_tokens {request.min_tokens}: allowed_token_ids holds nothing but end and stop tokens, which come later",
    )


def _within(name: str, ids: Collection[int], vocab_size: int) -> None:
    """Bounds the list, too: the engine goes through it in the event loop."""
    _refuse(name, len(ids) > vocab_size, f"{name}: more entries than the vocabulary has, {vocab_size}")
    highest = max(ids, default=0)
    _refuse(name, highest >= vocab_size, f"{name}: {highest} is not below the vocabulary size {vocab_size}")


def _with_draft(request: CompletionRequest) -> None:
    # For logprob_token_ids vLLM's rejection sampler returns nothing.
    for name in ("logit_bias", "min_p", "logprob_token_ids"):
        _refuse(name, bool(getattr(request, name)), f"{name} is not supported with speculative decoding")


def _texts(request: CompletionRequest) -> None:
    for name in ("stop", "bad_words"):
        _refuse(name, "" in (getattr(request, name) or ()), f"{name} cannot contain an empty string")
    name, found = "repetition_detection", request.repetition_detection
    if found is not None:
        few = found.max_pattern_size > 0 and found.min_count < 2
        _refuse(name, few, f"{name}.min_count must be at least 2")
        swapped = found.min_pattern_size > found.max_pattern_size
        _refuse(name, swapped, f"{name}.min_pattern_size is above max_pattern_size")


def _note_unknown(request: CompletionRequest) -> None:
    """Names each unknown field once per process; the set is bounded because clients choose the names."""
    for name in request.model_extra or ():
        short = name[:64]
        if short not in _named and len(_named) < _MAX_NAMES:
            _named.add(short)
            log.info("unknown request field ignored: %r", short)
