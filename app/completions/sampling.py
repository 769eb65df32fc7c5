"""From a checked request to the port's `Sampling`: defaults of the model filled in, the output cut to the
budget.
"""

from __future__ import annotations

from typing import Any

from app.completions.constraints import constraint_of
from app.completions.protocol import CompletionRequest
from app.engine import EngineFacts, Sampling

_DEFAULTS: dict[str, Any] = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
}
"""OpenAI's values, used where neither the request nor the generation config has one."""


def sampling_of(request: CompletionRequest, facts: EngineFacts) -> Sampling:
    """Request, else generation config, else OpenAI's default; max_tokens is cut to what the decoder has room
    for.

    The budget is the decoder's own: one start token and the output share max_model_len, whatever the prompt's
    length.
    """
    given = {name: getattr(request, name) for name in _DEFAULTS}
    chosen = {
        name: value if value is not None else facts.default_sampling.get(name, _DEFAULTS[name])
        for name, value in given.items()
    }
    if facts.has_draft and request.min_p is None:
        chosen["min_p"] = 0.0
    repetition = request.repetition_detection
    return Sampling(
        **chosen,
        n=request.n,
        max_tokens=min(request.output_limit, facts.max_model_len - 1),
        min_tokens=request.min_tokens,
        seed=request.seed,
        stop=request.stops,
        stop_token_ids=tuple(request.stop_token_ids or ()),
        include_stop_str_in_output=request.include_stop_str_in_output,
        ignore_eos=request.ignore_eos,
        skip_special_tokens=request.skip_special_tokens,
        spaces_between_special_tokens=request.spaces_between_special_tokens,
        logprobs=request.logprobs,
        logprob_token_ids=None if request.logprob_token_ids is None else tuple(request.logprob_token_ids),
        logit_bias={int(key): bias for key, bias in request.logit_bias.items()}
        if request.logit_bias
        else None,
        allowed_token_ids=None if request.allowed_token_ids is None else tuple(request.allowed_token_ids),
        bad_words=tuple(request.bad_words),
        structured=constraint_of(request),
        repetition=None
        if repetition is None
        else repetition.model_dump(include=set(type(repetition).model_fields)),
        stream_interval=request.stream_interval,
    )
