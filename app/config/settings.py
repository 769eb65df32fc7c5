"""Every environment variable of the gateway: name, type, default, unit and how to choose it.

One typed object answers what the process was asked to do. It is read once, before anything heavy is imported, so that a
wrong value costs a second and one line instead of an engine start. The fields' descriptions are the only place where a
variable is explained: the table of docs/settings.md and the flags of `t5gemma2 serve` are made from them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.config.comma_lists import CommaList, SecretList

PREFIX = "T5GEMMA_"
DEFAULT_MAX_POSITIONS = 4096
"""Cap of the default length limits, in tokens: a 32k default would reserve K/V memory that few requests use."""


class SettingsError(ValueError):
    """A variable is unknown or has a value that cannot be used; the message is one line naming both."""


Level = Literal["none", "summary", "detailed"]
"""How much of its speculative decoding a response tells."""


class Settings(BaseSettings):
    """What the gateway was asked to do; immutable. `app.config.environment.load_settings` words errors for people."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, extra="ignore", frozen=True, hide_input_in_errors=True
    )

    model: str | None = Field(
        None,
        description="Verifier, or Speculators draft whose config names its verifier; local folder or hub id."
        " Unset: the bundled DFlash demo draft.",
    )
    draft: str | None = Field(
        None,
        description="Draft for the verifier given as MODEL, local folder or hub id; `none` serves it alone.",
    )
    verifier: str | None = Field(
        None,
        description="Verifier to use instead of the one that the draft's config names; local folder or hub id.",
    )
    k: int | Literal["auto"] | None = Field(
        None,
        description="Draft tokens per step, 1 ... block_size - 1, or `auto`: what proves fastest, 0 included. Unset:"
        " the checkpoint's own. The draft fills its whole block at every K; smaller pays when the later positions are"
        " seldom accepted (see /drafts/stats).",
    )
    k_floor: int = Field(0, ge=0, description="The smallest K that auto chooses; 0 lets it stop drafting.")
    k_ceiling: int | None = Field(
        None, ge=1, description="The largest K that auto chooses. Unset: block_size - 1."
    )
    baseline_share: float = Field(
        0.01,
        ge=0,
        le=0.2,
        allow_inf_nan=False,
        description="Share of the engine's steps that run at another K, K = 0 above all, to know what the draft is"
        " worth (/drafts/stats); auto takes 0.02 at least. 0: no live estimate.",
    )
    baseline_dir: Path | None = Field(
        None,
        description="Folder of stored baselines (`t5gemma2 bench --store-baseline`)."
        " Unset: ~/.cache/t5gemma2/baselines.",
    )
    short_block: bool = Field(
        False,
        description="true drafts a block of 1 + K slots instead of the trained one, for comparison: acceptance falls,"
        " and K cannot be changed.",
    )
    adaptive_verification: bool = Field(
        False,
        description="true has vLLM verify in each step the drafts that are likeliest to be accepted, as many as pay,"
        " for batches of 32 and more. CUDA with graphs only, and only with a draft.",
    )
    allow_switch: bool = Field(
        False,
        description="true lets everyone change K and the draft (POST /drafts/k, /drafts/active) where no API keys are"
        " set; with keys a key is needed and this has no part.",
    )
    served_model_name: CommaList = Field(
        (),
        description="Comma list of model ids; the first is reported, all are accepted."
        " Unset: the last part of the served checkpoint's path.",
    )
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto",
        description="Weights and activations: auto is bfloat16 on CUDA and float32 for the demo on the CPU."
        " float16 is refused: Gemma's activations overflow it.",
    )
    max_model_len: int | None = Field(
        None,
        ge=2,
        description="Decoder positions per request, tokens. Unset: the verifier's, at most"
        f" {DEFAULT_MAX_POSITIONS}; it bounds 1 start token + max_tokens, hence 2 at least.",
    )
    max_encoder_len: int | None = Field(
        None,
        ge=1,
        description="Encoder (prompt) tokens per request. Unset: MAX_MODEL_LEN; longer prompts are refused.",
    )
    max_num_seqs: int = Field(
        4, ge=1, le=4096, description="Requests in one batch; CUDA graphs are captured for 1 ... this many."
    )
    max_num_batched_tokens: int | None = Field(
        None,
        ge=1,
        description="Tokens in one engine step. Unset: what one full request and one full batch need, 2048 at least.",
    )
    gpu_memory_utilization: float = Field(
        0.85,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="Share of the device's memory for weights and K/V, above 0 and at most 1."
        " Lower it when something else uses the GPU.",
    )
    kv_cache_memory_bytes: int | None = Field(
        None,
        ge=1,
        description="K/V cache size, bytes; overrules the share above. Unset: what MAX_NUM_SEQS requests of"
        " full length use, with head room; on CUDA at most the share.",
    )
    encoder_cache_bytes: int = Field(
        256 << 20,
        ge=0,
        description="Encoder states of prompts that an engine keeps for requests with the same ids, bytes (2.3 KB a"
        " token at 1B), the least recently used out first; 0 keeps none. One cache for all callers: a repeated prompt"
        " answers sooner.",
    )
    max_encoder_tokens_per_step: int | None = Field(
        None,
        ge=1,
        description="Prompt tokens encoded in one engine step beside running requests; a longer prompt takes several"
        " steps. Smaller stalls running streams less, larger lets new ones begin sooner. Unset: 128, on the CPU 32.",
    )
    seed: int = Field(0, ge=0, le=2**63 - 1, description="Engine seed for requests that carry none.")
    data_parallel_size: int = Field(
        1, ge=1, le=64, description="Engine replicas on GPUs of this host, one each."
    )
    enforce_eager: bool | None = Field(
        None,
        description="true: no compilation and no CUDA graphs. Unset: true on the CPU"
        " (compiling costs a minute at start), false on CUDA.",
    )
    warm_up: bool = Field(
        True,
        description="One tiny request of every kind before /ready, counted nowhere. false: the first users"
        " of a kind wait for what it needs, seconds on CUDA.",
    )
    probe: bool = Field(
        True,
        description="A few canned prompts before /ready, counted nowhere, whose acceptance is said in the log and in"
        " /drafts. false: not.",
    )
    enable_prefix_caching: bool = Field(
        False, description="Must stay false: cross-attention K/V cannot be shared between prompts."
    )
    disable_any_whitespace: bool = Field(
        False,
        description="true: JSON that a request asks for has no white space outside of strings, in which a model may"
        " else lose itself; a request's own structured_outputs.disable_any_whitespace wins.",
    )
    api_keys: SecretList = Field(
        (),
        description="Comma list of bearer keys; guards everything but /health, /ready,"
        " /metrics and the live page's files. Unset: open.",
    )
    cors_origins: CommaList = Field(
        (), description="Comma list of browser origins (`https://ui.example`) that may call the API, or `*`."
    )
    max_queued_requests: int = Field(
        256, ge=0, description="Requests waiting beyond the batch before new ones get 503 with Retry-After."
    )
    request_timeout_s: float = Field(
        600, gt=0, allow_inf_nan=False, description="Deadline of one request, seconds, queueing included."
    )
    hang_timeout_s: float = Field(
        300,
        gt=0,
        allow_inf_nan=False,
        description="Seconds that an engine step may take. Beyond it the engine counts as hung, and the process ends as"
        " when it dies; after a tenth /ready answers 503 until it goes on.",
    )
    max_body_bytes: int = Field(8 * 2**20, ge=1, description="Largest request body, bytes; larger is 413.")
    shutdown_grace_s: float = Field(
        30, ge=0, allow_inf_nan=False, description="Seconds that running requests get to end after SIGTERM."
    )
    log_format: Literal["text", "json"] = Field("text", description="Log lines for people or for collectors.")
    log_prompts: bool = Field(
        False, description="true writes prompts into the log; by default none appears there."
    )
    otlp_traces_endpoint: str | None = Field(
        None,
        description="OpenTelemetry collector for traces of completions (http://localhost:4317). Unset: no traces.",
    )
    stats_window_s: float = Field(
        60,
        gt=0,
        le=86_400,
        allow_inf_nan=False,
        description="Length of the sliding window of /drafts/stats, seconds; longer is steadier, shorter is quicker.",
    )
    checkpoints_dir: Path | None = Field(
        None,
        description="Folder where names that are no path are looked up before the hub, and whose drafts"
        " `POST /drafts/active` can change to (`plugin/demo`: the demo's three).",
    )
    request_metrics: Level = Field(
        "summary",
        description="Per-request speculative-decoding metrics in responses (only with a draft);"
        " detailed adds the accepted tokens of each step.",
    )
    page: bool = Field(True, description="false: no live page at `/`.")
    root_path: str | None = Field(None, description="Path prefix that a proxy strips, such as /t5gemma.")
    _origins: dict[str, str] = PrivateAttr(default_factory=dict)
    """Where each value comes from that is no default, by field; filled by `load_settings`."""

    @model_validator(mode="before")
    @classmethod
    def _stripped(cls, values: dict[str, object]) -> dict[str, object]:
        """Blanks around a value, such as a secret's line end, do not count; blank is unset: `T5GEMMA_DRAFT=" "` must
        never mean the current folder. But blank keys were meant to close the API.
        """
        given = {name: value.strip() if isinstance(value, str) else value for name, value in values.items()}
        return {name: value for name, value in given.items() if value != "" or name == "api_keys"}

    @field_validator("k", mode="before")
    @classmethod
    def _whole_or_auto(cls, value: object) -> object:
        text = str(value).lower()
        if value is not None and text != "auto" and not (text.isdecimal() and int(text)):
            raise ValueError("must be a whole number from 1, or auto")
        return text if text == "auto" else value and int(text)

    @field_validator("dtype", mode="before")
    @classmethod
    def _known_dtype(cls, value: object) -> object:
        if value in ("float16", "half"):
            raise ValueError("Gemma's activations overflow float16; use auto, bfloat16 or float32")
        return value

    @field_validator("enable_prefix_caching")
    @classmethod
    def _no_prefix_caching(cls, value: bool) -> bool:
        if value:
            raise ValueError("cross-attention K/V cannot be shared between prompts; remove it or set false")
        return value

    @field_validator("root_path")
    @classmethod
    def _clean_root_path(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith("/"):
            raise ValueError("must start with /")
        return (value or "").rstrip("/") or None

    @field_validator("cors_origins")
    @classmethod
    def _real_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            if origin != "*" and not re.fullmatch(r"https?://[^/\s]+", origin):
                raise ValueError(f"{origin!r} is no origin; write scheme://host[:port] without a path, or *")
        return value

    @field_validator("k_ceiling")
    @classmethod
    def _above_the_floor(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and value < info.data.get("k_floor", 0):
            raise ValueError(f"is below {variable('k_floor')}={info.data['k_floor']}")
        return value

    @field_validator("short_block")
    @classmethod
    def _at_one_k(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("k") == "auto":
            raise ValueError(f"{variable('k')}=auto needs the whole block")
        return value

    @field_validator("checkpoints_dir")
    @classmethod
    def _existing_folder(cls, value: Path | None) -> Path | None:
        if value is not None and not (value := value.expanduser()).is_dir():
            raise ValueError("is not a folder")
        return value


def variable(field: str) -> str:
    """The environment variable of a settings field."""
    return PREFIX + field.upper()
