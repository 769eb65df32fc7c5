"""The request of `POST /v1/completions`: vLLM's own field names and defaults, checked field by field.

What one field alone can decide is decided here; what depends on other fields or on the model is in `rules`.
`REFUSED` names the fields of vLLM's request that this server does not serve, with the reason that the 400
gives.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

MAX_N = 128
MAX_PROMPTS = 1024
MAX_LOGPROBS = 20
MAX_STOPS = 64
INT64 = 2**63
INT32_MAX = 2**31 - 1

REFUSED: dict[str, str] = {
    "ec_transfer_params": "there is no encoder cache to transfer from",
    "kv_transfer_params": "there is no K/V transfer",
    "length_penalty": "it belongs to beam search, which is not served",
    "mm_payload": "the render endpoints are not served",
    "priority": "requests are served first come, first served",
    "prompt_embeds": "the encoder takes text or token ids",
    "prompt_logprobs": "the prompt is the encoder's input, which has no probabilities",
    "return_mm_kwargs": "the render endpoints are not served",
    "return_token_offsets": "the render endpoints are not served",
    "routed_experts_prompt_start": "the model has no experts",
    "suffix": "the model does not fill in the middle",
    "thinking_token_budget": "the model has no thinking phase",
    "use_beam_search": "beam search is not served",
    "vllm_xargs": "no extension reads it",
    "watermarking": "no watermark is configured",
}

Prompt = str | list[int] | list[str] | list[list[int]]


def _prompt(value: Any) -> Any:
    """Text, token ids, or a list of either; one pass instead of a union's four, for lists may be long."""
    if isinstance(value, str):
        if not value:
            raise ValueError("must not be empty")
        return value
    if not isinstance(value, list):
        raise ValueError("must be a string, a list of strings, a list of token ids or a list of such lists")
    if not value:
        raise ValueError("must not be empty")
    kinds = set(map(type, value))
    if kinds == {int}:
        return _ids(value)
    if len(value) > MAX_PROMPTS:
        raise ValueError(f"{len(value)} prompts, at most {MAX_PROMPTS} are taken")
    if kinds == {str}:
        if "" in value:
            raise ValueError(f"item {value.index('')} must not be empty")
        return value
    if kinds == {list}:
        for position, ids in enumerate(value):
            if not ids or set(map(type, ids)) != {int}:
                raise ValueError(f"item {position} must be a list of one or more token ids")
            _ids(ids)
        return value
    raise ValueError("must hold strings only, token ids only, or lists of token ids only")


def _ids(ids: list[int]) -> list[int]:
    if min(ids) < 0 or max(ids) > INT32_MAX:
        raise ValueError("holds a number that is no token id")
    return ids


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _or(default: Any) -> BeforeValidator:
    """`null` means the default, as most clients intend."""
    return BeforeValidator(lambda value: default if value is None else value)


class Model(BaseModel):
    """NaN and infinities are refused; unknown fields are kept aside, so that they can be named in the log."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False, hide_input_in_errors=True)


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
    """vLLM's form of a constraint: exactly one of the first six."""

    model_config = ConfigDict(extra="forbid")

    json_: str | dict[str, Any] | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None


class RepetitionDetection(Model):
    max_pattern_size: int = Field(0, ge=0, le=INT32_MAX)
    min_pattern_size: int = Field(0, ge=0, le=INT32_MAX)
    min_count: int = Field(0, ge=0, le=INT32_MAX)


TokenIds = list[Annotated[int, Field(ge=0, le=INT32_MAX)]]
PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_PROMPTS,
            "items": {"type": "string", "minLength": 1},
        },
        {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
        {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_PROMPTS,
            "items": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
        },
    ]
}


class CompletionRequest(Model):
    """A completion request. The prompt is the encoder's input, always; lengths are in tokens."""

    model: str | None = None
    prompt: Annotated[Any, BeforeValidator(_prompt), WithJsonSchema(PROMPT_SCHEMA)] = None
    echo: bool | None = False
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, float] | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    max_tokens: Annotated[int | None, _or(16)] = Field(16, ge=0, le=INT32_MAX)
    n: Annotated[int, _or(1)] = Field(1, ge=1, le=MAX_N)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    seed: int | None = Field(None, ge=-INT64, le=INT64 - 1)
    stop: Annotated[list[str] | None, BeforeValidator(_as_list)] = Field([], max_length=MAX_STOPS)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    suffix: Any = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    user: str | None = None

    top_k: int | None = Field(None, ge=-1, le=INT32_MAX)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0, le=100)
    stop_token_ids: TokenIds | None = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = Field(0, ge=0, le=INT32_MAX)
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: int | None = Field(None, ge=-1, le=INT64 - 1)
    truncation_side: Literal["left", "right"] | None = None
    allowed_token_ids: TokenIds | None = None
    logprob_token_ids: TokenIds | None = None
    bad_words: list[str] = Field([], max_length=1024)
    add_special_tokens: bool = True
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    request_id: str | None = Field(None, pattern=r"^[!-~]{1,256}$")
    session_id: str | None = Field(None, max_length=256)
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = Field(None, min_length=1, max_length=128)
    repetition_detection: RepetitionDetection | None = None
    stream_interval: int | None = Field(None, ge=1, le=INT32_MAX)

    use_beam_search: Any = False
    watermarking: Any = None
    length_penalty: Any = 1.0
    prompt_logprobs: Any = None
    prompt_embeds: Any = None
    priority: Any = 0
    routed_experts_prompt_start: Any = 0
    return_token_offsets: Any = False
    mm_payload: Any = "tensors"
    return_mm_kwargs: Any = None
    kv_transfer_params: Any = None
    ec_transfer_params: Any = None
    vllm_xargs: Any = None
    thinking_token_budget: Any = None

    best_of: int | None = Field(None, description="OpenAI's; served when it equals n.")
    max_completion_tokens: int | None = Field(
        None, ge=0, le=INT32_MAX, description="Alias of max_tokens, which wins when both are given."
    )
    request_metrics: Literal["none", "summary", "detailed"] | None = Field(
        None, description="Overrules T5GEMMA_REQUEST_METRICS for this request."
    )

    @property
    def output_limit(self) -> int:
        """Tokens asked for: max_tokens, else its alias, else 16."""
        given = self.model_fields_set
        if "max_tokens" not in given and self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def stops(self) -> tuple[str, ...]:
        return tuple(self.stop or ())


OWN_FIELDS = {"best_of", "max_completion_tokens", "request_metrics"}
"""Fields of ours that vLLM's request does not have."""
