"""The response of `POST /v1/completions`: one set of models for the JSON body, the stream's chunks and OpenAPI."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Literal

from pydantic import BaseModel
from pydantic_core import to_json

from app.completions.metrics import RequestMetrics
from app.engine import FinishReason, Sample, TokenLogprob

LOWEST_LOGPROB = -9999.0
"""What stands for minus infinity, which JSON has not."""


class LogProbs(BaseModel):
    """Parallel arrays, one entry a token; `text_offset` counts characters from the start of the choice's text, in which
    special tokens have no place unless `skip_special_tokens` is false.
    """

    text_offset: list[int] = []
    token_logprobs: list[float | None] = []
    tokens: list[str] = []
    top_logprobs: list[dict[str, float] | None] = []


class Choice(BaseModel):
    """One sample. `stop_reason` is the stop string or token id that ended it, null for EOS."""

    index: int
    text: str
    logprobs: LogProbs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    metrics: RequestMetrics | None = None


class CompletionTokensDetails(BaseModel):
    """Draft tokens that are in the output, and those that are not."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class PromptTokensDetails(BaseModel):
    """Prompt tokens whose encoder states were there already."""

    cached_tokens: int


class Usage(BaseModel):
    """Tokens; `prompt_tokens` are encoder tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


class Completion(BaseModel):
    """The whole answer, or one chunk of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | None = None
    metrics: RequestMetrics | None = None


def usage_of(
    prompt_tokens: int,
    completion_tokens: int,
    metrics: RequestMetrics | None = None,
    cached_tokens: int | None = None,
) -> Usage:
    """Usage, with OpenAI's details of prompt tokens and of draft tokens where they are known."""
    usage = Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
    )
    if cached_tokens is not None:
        usage.prompt_tokens_details = PromptTokensDetails(cached_tokens=cached_tokens)
    spec = metrics.speculative_decoding if metrics is not None else None
    if spec is not None:
        accepted = spec.num_accepted_draft_tokens
        usage.completion_tokens_details = CompletionTokensDetails(
            accepted_prediction_tokens=accepted, rejected_prediction_tokens=spec.num_draft_tokens - accepted
        )
    return usage


class LogprobWriter:
    """Logprobs of one choice, call after call; keeps the text offset between chunks of a stream."""

    def __init__(self, as_token_ids: bool, hidden: Collection[int] = ()) -> None:
        """`as_token_ids` writes `token_id:N` for tokens, for callers to whom a token's text is ambiguous; of
        `hidden` ids the text shows nothing.
        """
        self._as_token_ids = as_token_ids
        self._hidden = hidden
        self._offset = 0

    def write(self, tokens: Iterable[TokenLogprob]) -> LogProbs:
        """The arrays for these tokens."""
        out = LogProbs(text_offset=[], token_logprobs=[], tokens=[], top_logprobs=[])
        for token in tokens:
            out.text_offset.append(self._offset)
            out.tokens.append(self._name(token.token_id, token.text))
            out.token_logprobs.append(_finite(token.logprob))
            out.top_logprobs.append(self._top(token))
            self._offset += 0 if token.token_id in self._hidden else len(token.text)
        return out

    def _name(self, token_id: int, text: str) -> str:
        return f"token_id:{token_id}" if self._as_token_ids else text

    def _top(self, token: TokenLogprob) -> dict[str, float]:
        entries: dict[str, float] = {}
        for token_id, text, logprob in token.top:
            name = self._name(token_id, text)
            # Byte pieces of different ids may share a text (U+FFFD); the id keeps both.
            entries[name if name not in entries else f"token_id:{token_id}"] = _finite(logprob)
        return entries


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LOWEST_LOGPROB


def wire(model: BaseModel) -> bytes:
    """JSON; optional parts that were never set are left out, nulls that say something stay."""
    return model.__pydantic_serializer__.to_json(model, exclude_unset=True)


def plain(index: int, sample: Sample) -> bytes:
    """The JSON of a choice that says no more than its text and its end. A stream has one an engine output, and this
    takes a tenth of the time that `wire` takes for the same bytes.
    """
    finish, stop = sample.finish_reason, sample.stop_reason
    return b'{"index":%d,"text":%b,"logprobs":null,"finish_reason":%b,"stop_reason":%b}' % (
        index,
        to_json(sample.text),
        b"null" if finish is None else b'"%b"' % finish.encode(),
        b"null" if stop is None else to_json(stop),
    )
