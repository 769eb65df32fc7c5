"""What one field alone cannot decide: refusals that depend on other fields, on the model or on the draft.

Every rule runs before a header is sent and before anything reaches the engine, and every refusal names its field.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from app.completions.protocol import REFUSED, CompletionRequest
from app.engine import EngineFacts, InvalidRequest

log = logging.getLogger("app.completions")

_MAX_NAMES = 64
_MAX_DIGITS = 12
_named: set[str] = set()


def check(request: CompletionRequest, facts: EngineFacts) -> None:
    """InvalidRequest for the first rule that this request breaks."""
    _refused_fields(request)
    _sequences(request)
    _lengths(request, facts)
    _vocabulary(request, facts.vocab_size)
    if facts.has_draft:
        _with_draft(request)
    _texts(request)
    _note_unknown(request)


def _refused_fields(request: CompletionRequest) -> None:
    for name, reason in REFUSED.items():
        value = getattr(request, name)
        harmless = (
            value is None or value is False or value in ("", -1 if name == "thinking_token_budget" else None)
        )
        if not harmless and value != CompletionRequest.model_fields[name].default:
            raise InvalidRequest(f"{name} is not supported: {reason}", name)


def _sequences(request: CompletionRequest) -> None:
    if request.prompt is None:
        raise InvalidRequest("prompt: must be given", "prompt")
    if request.best_of is not None and request.best_of != request.n:
        raise InvalidRequest(
            f"best_of {request.best_of} must equal n {request.n}: samples are not ranked", "best_of"
        )
    if request.n > 1 and request.temperature == 0:
        raise InvalidRequest(f"n must be 1 when using greedy sampling, got {request.n}", "n")
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("stream_options can only be given with stream: true", "stream_options")
    if request.echo and request.logprobs is not None:
        raise InvalidRequest(
            "echo with logprobs is not supported: the encoder's tokens have no logprobs", "echo"
        )
    if request.logprob_token_ids is not None and request.logprobs is None:
        raise InvalidRequest("logprob_token_ids needs logprobs", "logprob_token_ids")
    if request.logprob_token_ids == []:
        raise InvalidRequest("logprob_token_ids must not be empty", "logprob_token_ids")


def _lengths(request: CompletionRequest, facts: EngineFacts) -> None:
    limit = request.output_limit
    if limit == 0 and not request.echo:
        raise InvalidRequest("max_tokens must be at least 1, or 0 with echo", "max_tokens")
    if request.min_tokens > limit:
        raise InvalidRequest(f"min_tokens {request.min_tokens} is above max_tokens {limit}", "min_tokens")
    if request.min_tokens > facts.max_model_len - 1:
        raise InvalidRequest(
            f"min_tokens {request.min_tokens} + 1 start token is above max_model_len {facts.max_model_len}",
            "min_tokens",
        )
    kept = request.truncate_prompt_tokens
    if kept == 0:
        raise InvalidRequest("truncate_prompt_tokens 0 would leave an empty prompt", "truncate_prompt_tokens")
    if kept is not None and kept > facts.max_encoder_len:
        raise InvalidRequest(
            f"truncate_prompt_tokens {kept} is above max_encoder_len {facts.max_encoder_len}",
            "truncate_prompt_tokens",
        )


def _vocabulary(request: CompletionRequest, vocab_size: int) -> None:
    _within("stop_token_ids", request.stop_token_ids or (), vocab_size)
    _within("logprob_token_ids", request.logprob_token_ids or (), vocab_size)
    if request.allowed_token_ids is not None:
        if not request.allowed_token_ids:
            raise InvalidRequest("allowed_token_ids must not be empty", "allowed_token_ids")
        _within("allowed_token_ids", request.allowed_token_ids, vocab_size)
    if request.logit_bias:
        for key in request.logit_bias:
            # Bounded, since int() refuses thousands of digits, zeros in front too.
            if not (key.isascii() and key.isdigit() and len(key) <= _MAX_DIGITS):
                raise InvalidRequest(f"logit_bias: {key[:32]!r} is no token id", "logit_bias")
        _within("logit_bias", map(int, request.logit_bias), vocab_size)


def _within(name: str, ids: Iterable[int], vocab_size: int) -> None:
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(f"{name}: {token_id} is not below the vocabulary size {vocab_size}", name)


def _with_draft(request: CompletionRequest) -> None:
    if request.logit_bias:
        raise InvalidRequest("logit_bias is not supported with speculative decoding", "logit_bias")
    if request.min_p:
        raise InvalidRequest("min_p is not supported with speculative decoding", "min_p")
    if request.logprob_token_ids:
        # vLLM's rejection sampler returns nothing for them.
        raise InvalidRequest(
            "logprob_token_ids is not supported with speculative decoding", "logprob_token_ids"
        )


def _texts(request: CompletionRequest) -> None:
    if "" in (request.stop or ()):
        raise InvalidRequest("stop cannot contain an empty string", "stop")
    if "" in request.bad_words:
        raise InvalidRequest("bad_words cannot contain an empty string", "bad_words")
    found = request.repetition_detection
    if found is not None and found.max_pattern_size > 0 and found.min_count < 2:
        raise InvalidRequest("repetition_detection.min_count must be at least 2", "repetition_detection")
    if found is not None and found.min_pattern_size > found.max_pattern_size:
        raise InvalidRequest(
            "repetition_detection.min_pattern_size is above max_pattern_size", "repetition_detection"
        )


def _note_unknown(request: CompletionRequest) -> None:
    """Names each unknown field once per process; the set is bounded because clients choose the names."""
    for name in request.model_extra or ():
        short = name[:64]
        if short not in _named and len(_named) < _MAX_NAMES:
            _named.add(short)
            log.info("unknown request field ignored: %r", short)
