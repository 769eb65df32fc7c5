"""The request of `POST /v1/completions`: vLLM's own field names and defaults, checked field by field.

What one field alone can decide is decided here; what depends on other fields or on the model is in `rules`. The
descriptions are the only place where a field is explained: OpenAPI and docs/completions.md are made from them.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from app.completions.fields import (
    INT32_MAX,
    INT64,
    MAX_ALLOWED,
    MAX_LOGPROBS,
    MAX_N,
    MAX_STOPS,
    Biases,
    Float,
    Int,
    OneOrMore,
    Prompt,
    Strings,
    TokenIds,
    Words,
)
from app.config.settings import Level


class Model(BaseModel):
    """NaN and infinities are refused, `null` means the default; unknown fields are kept, to be named in the log."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False, hide_input_in_errors=True)

    @field_validator("*", mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any, info: ValidationInfo) -> Any:
        """As most clients intend that send every field they know."""
        if value is not None or info.field_name is None:
            return value
        field = cls.model_fields[info.field_name]
        return value if field.is_required() else field.get_default(call_default_factory=True)


class StreamOptions(Model):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class JsonSchema(Model):
    name: str
    description: str | None = None
    json_schema: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Model):
    """OpenAI's form of a constraint; `structural_tag` has vLLM's further fields."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Model):
    """vLLM's form of a constraint: exactly one of the first six. `disable_any_whitespace` goes with `json` and
    `json_object`, and with `response_format`; null leaves it to T5GEMMA_DISABLE_ANY_WHITESPACE.
    """

    model_config = ConfigDict(extra="forbid")

    json_: str | dict[str, Any] | None = Field(None, alias="json")
    regex: str | None = None
    choice: Strings | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None


class RepetitionDetection(Model):
    max_pattern_size: Int = Field(0, ge=0, le=INT32_MAX)
    min_pattern_size: Int = Field(0, ge=0, le=INT32_MAX)
    min_count: Int = Field(0, ge=0, le=INT32_MAX)


_REFUSAL = "400: "


def _refused(default: Any, reason: str) -> Any:
    """A field of vLLM's request that this server does not serve; the 400 gives the reason."""
    return Field(default, description=_REFUSAL + reason)


class CompletionRequest(Model):
    """A completion request. The prompt is the encoder's input, always; lengths are in tokens."""

    model: str | None = Field(None, description="One of the ids of `/v1/models`; null: the first.")
    prompt: Prompt = Field(
        None, description="Text, token ids, or a list of up to 1024 of either; the encoder's input."
    )
    echo: bool | None = Field(
        False, description="The prompt before the text; not with `logprobs`; with `max_tokens: 0` alone."
    )
    frequency_penalty: Float | None = Field(None, ge=-2, le=2, description="-2 ... 2.")
    logit_bias: Biases | None = Field(
        None, description="-100 ... 100 for up to 1024 ids; refused with a draft."
    )
    logprobs: Int | None = Field(None, ge=0, le=MAX_LOGPROBS, description="0 ... 20.")
    max_tokens: Int = Field(
        16, ge=0, le=INT32_MAX, description="Cut to max_model_len - 1; 0 with `echo` only."
    )
    n: Int = Field(1, ge=1, le=MAX_N, description="1 ... 128; 1 at temperature 0.")
    presence_penalty: Float | None = Field(None, ge=-2, le=2, description="-2 ... 2.")
    seed: Int | None = Field(None, ge=-INT64, le=INT64 - 1, description="64-bit integer; -1: none.")
    stop: OneOrMore | None = Field(
        [], max_length=MAX_STOPS, description="Up to 64 strings; none is shown in the text."
    )
    stream: bool | None = Field(False, description="Server-sent events, then `data: [DONE]`.")
    stream_options: StreamOptions | None = Field(
        None, description="`include_usage`, `continuous_usage_stats`."
    )
    suffix: Any = _refused(None, "the model does not fill in the middle")
    temperature: Float | None = Field(
        None, ge=0, le=2, description="0 ... 2; default: the generation config's, else 1."
    )
    top_p: Float | None = Field(None, gt=0, le=1, description="Above 0 ... 1.")
    user: str | None = Field(None, description="Ignored.")

    top_k: Int | None = Field(None, ge=-1, le=INT32_MAX, description="0 or -1: all.")
    min_p: Float | None = Field(None, ge=0, le=1, description="0 ... 1; refused with a draft.")
    repetition_penalty: Float | None = Field(None, ge=0.01, le=100, description="0.01 ... 100.")
    stop_token_ids: TokenIds | None = Field(
        [], max_length=MAX_STOPS, description="Up to 64, below the vocabulary size."
    )
    include_stop_str_in_output: bool = Field(False, description="Shows the stop string that ended the text.")
    ignore_eos: bool = Field(False, description="EOS does not end the output.")
    min_tokens: Int = Field(0, ge=0, le=INT32_MAX, description="No end before so many; at most max_tokens.")
    skip_special_tokens: bool = Field(True, description="Leaves special tokens out of the text.")
    spaces_between_special_tokens: bool = Field(True, description="Puts spaces between special tokens.")
    truncate_prompt_tokens: Int | None = Field(
        None, ge=-1, le=INT64 - 1, description="-1: to max_encoder_len."
    )
    truncation_side: Literal["left", "right"] | None = Field(
        None, description="The side that is cut: `left` or `right`."
    )
    allowed_token_ids: TokenIds | None = Field(
        None, max_length=MAX_ALLOWED, description="Up to 1024, below the vocabulary size, not empty."
    )
    logprob_token_ids: TokenIds | None = Field(None, description="Needs `logprobs`; refused with a draft.")
    bad_words: Words = Field(
        [],
        max_length=128,
        description="Up to 128 strings of 64 characters: not written, spaced or not, as far as there is room.",
    )
    add_special_tokens: bool = Field(True, description="Puts BOS before a text; ids are used as given.")
    response_format: ResponseFormat | None = Field(
        None, description="`text`, `json_object`, `json_schema`, `structural_tag`."
    )
    structured_outputs: StructuredOutputs | None = Field(
        None,
        description="One of `json`, `regex`, `choice`, `grammar`, `json_object`, `structural_tag`; with"
        " `disable_any_whitespace: true`, also beside `response_format`, JSON is compact.",
    )
    request_id: str | None = Field(
        None, pattern=r"^[!-~]{1,256}$", description="In the response's id; header `X-Request-Id` otherwise."
    )
    session_id: str | None = Field(None, max_length=256, description="Passed to the engine.")
    return_tokens_as_token_ids: bool | None = Field(
        None, description="`token_id:N` in place of token texts in `logprobs`."
    )
    return_token_ids: bool | None = Field(
        None, description="Adds `prompt_token_ids` and `token_ids` to choices."
    )
    cache_salt: str | None = Field(
        None,
        min_length=1,
        max_length=128,
        description="Accepted; no cache is shared between prompts in any case.",
    )
    repetition_detection: RepetitionDetection | None = Field(
        None, description="Ends with `finish_reason: repetition`."
    )
    stream_interval: Int | None = Field(None, ge=1, le=INT32_MAX, description="Tokens an event.")

    use_beam_search: Any = _refused(False, "beam search is not served")
    watermarking: Any = _refused(None, "no watermark is configured")
    length_penalty: Any = _refused(1.0, "it belongs to beam search, which is not served")
    prompt_logprobs: Any = _refused(None, "the prompt is the encoder's input, which has no probabilities")
    prompt_embeds: Any = _refused(None, "the encoder takes text or token ids")
    priority: Any = _refused(0, "requests are served first come, first served")
    routed_experts_prompt_start: Any = _refused(0, "the model has no experts")
    return_token_offsets: Any = _refused(False, "the render endpoints are not served")
    mm_payload: Any = _refused("tensors", "the render endpoints are not served")
    return_mm_kwargs: Any = _refused(None, "the render endpoints are not served")
    kv_transfer_params: Any = _refused(None, "there is no K/V transfer")
    ec_transfer_params: Any = _refused(None, "there is no encoder cache to transfer from")
    vllm_xargs: Any = _refused(None, "no extension reads it")
    thinking_token_budget: Any = _refused(None, "the model has no thinking phase")

    best_of: Int | None = Field(None, description="Must equal `n`.")
    max_completion_tokens: Int | None = Field(
        None, ge=0, le=INT32_MAX, description="Alias of `max_tokens`, which wins."
    )
    request_metrics: Level | None = Field(
        None, description="`none`, `summary` or `detailed`; default T5GEMMA_REQUEST_METRICS."
    )

    @model_validator(mode="before")
    @classmethod
    def _null_limit_is_not_given(cls, data: Any) -> Any:
        """Else a null `max_tokens` would win over its alias."""
        if isinstance(data, dict) and data.get("max_tokens", 0) is None:
            return {name: value for name, value in data.items() if name != "max_tokens"}
        return data

    @property
    def output_limit(self) -> int:
        """Tokens asked for: max_tokens, else its alias, else 16."""
        given = self.model_fields_set
        if "max_tokens" not in given and self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return self.max_tokens

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompt as a list of one or more."""
        one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return [self.prompt] if one else self.prompt


OWN_FIELDS = {"best_of", "max_completion_tokens", "request_metrics"}
"""Fields of ours that vLLM's request does not have."""

REFUSED: dict[str, str] = {
    name: said.removeprefix(_REFUSAL)
    for name, field in sorted(CompletionRequest.model_fields.items())
    if (said := field.description or "").startswith(_REFUSAL)
}
"""Fields of vLLM's request that are not served -> the reason that the 400 gives, checked in this order."""
