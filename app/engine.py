"""The port: what the gateway asks of an engine, in its own words and without importing one.

Everything above this file (routes, completions, SSE) speaks only of these types, so it is tested with a fake engine in
milliseconds; `app.vllm_engine` is the one adapter that stands behind them in production.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from app.config.settings import Settings
from app.drafts.identity import Identity
from app.drafts.ledger import StepRecorder
from plugin.drafts.checkpoint import Checkpoints

FinishReason = Literal["stop", "length", "abort", "error", "repetition"]


class InvalidRequest(ValueError):
    """The request can never be served; the message says why and `param` names the field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class EngineDead(RuntimeError):
    """The engine process is gone; nothing but a restart of the server helps."""


class EngineFailure(RuntimeError):
    """This one request failed inside the engine; the engine lives on."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen and when generation ends; every value is already checked against its range.

    The names are those of vLLM's parameters and of the request's fields, whose values are passed on by name; a field
    added here and to the request is served. `structured_outputs` holds exactly one constraint (json, regex, choice,
    grammar, json_object, structural_tag) and its options, `repetition_detection` the three numbers of it. `logprobs`
    counts alternatives per token. `bad_words` are token sequences, whose last is never generated after the others.
    """

    n: int = 1
    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logprobs: int | None = None
    logprob_token_ids: Sequence[int] | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[Sequence[int]] = ()
    structured_outputs: Mapping[str, Any] | None = None
    repetition_detection: Mapping[str, int] | None = None
    stream_interval: int | None = None


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One prompt for the engine. `id` is unique in the process; `encoder_ids` are the encoder's input as they are;
    `trace_headers` are the W3C headers of the span that the engine's own is a child of.
    """

    id: str
    encoder_ids: Sequence[int]
    sampling: Sampling
    stream: bool
    session_id: str | None = None
    trace_headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probability (natural, <= 0) of one generated token and of its alternatives, most likely first."""

    token_id: int
    text: str
    logprob: float
    top: tuple[tuple[int, str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class SpecMetrics:
    """Acceptance of one sequence: `histogram[j]` counts the draft steps of which j draft tokens were accepted. The
    engine counts whole steps, `received` what is in the output. The lists by step also have the steps that verified
    no draft, since K was 0; their `per_step_drafted` is 0.
    """

    num_spec_tokens: int
    histogram: Sequence[int]
    num_draft_tokens: int
    per_step_accepted: Sequence[int] = ()
    per_step_drafted: Sequence[int] = ()

    def received(self, tokens: int) -> SpecMetrics:
        """The same of an output of so many tokens: what was accepted behind its end, in the last step, is left out. The
        first token comes before any step, and each step adds one of the verifier's own to those it accepted. Without
        `per_step_accepted` nothing can be left out.
        """
        left, steps = tokens - 1, []
        for accepted in self.per_step_accepted:
            steps.append(max(0, min(accepted, left)))
            left -= accepted + 1
        if not steps:
            return self
        drafted = [taken for taken, k in zip(steps, self.per_step_drafted, strict=True) if k]
        histogram = [drafted.count(j) for j in range(len(self.histogram))]
        return replace(self, histogram=histogram, per_step_accepted=steps)


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """Where one request's time went, seconds; None where the engine did not measure it."""

    queue_s: float | None = None
    first_token_s: float | None = None
    decode_s: float | None = None


@dataclass(slots=True)
class Sample:
    """What one sequence gained since the last step: new text, new token ids, their logprobs, and its end if ended.
    `logprobs` are made as they are read, once.

    `stop_reason` is the stop string or stop token id that ended it; `spec` comes with the end.
    """

    index: int
    text: str
    token_ids: Sequence[int]
    logprobs: Iterable[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    spec: SpecMetrics | None = None


@dataclass(slots=True)
class Step:
    """One output of the engine for one prompt; several engine steps may be merged in it when the reader lags.

    `cached_tokens` is how much of the prompt the encoder did not have to run over for this request: all or nothing.
    """

    samples: Sequence[Sample]
    finished: bool = False
    timing: RequestTiming | None = None
    cached_tokens: int | None = None


class Tokenizer(Protocol):
    """The verifier's tokenizer; every method may be called from any thread."""

    @property
    def max_chars_per_token(self) -> int:
        """Upper bound of characters that one token stands for."""

    @property
    def truncation_side(self) -> Literal["left", "right"]:
        """The side that truncation cuts when a request does not say."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of which a text without special tokens shows nothing."""

    def encode(self, text: str, add_special_tokens: bool, enough: int | None = None) -> list[int]:
        """Ids of a text. Given `enough`, a long text is read from its beginning until there are so many ids at least;
        those are the same as without.
        """

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str: ...

    def spellings(self, text: str, at_most: int, among: Collection[int] | None = None) -> list[list[int]]:
        """The sequences of tokens (of `among`, if given) that write the text, the shortest first, `at_most` of them."""

    def token(self, token_id: int) -> str:
        """The vocabulary's own spelling of one id."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the started engine knows of itself. Lengths in tokens.

    `vocab_size` is the model config's (the width of the logits), not the tokenizer's; `dtype` is that of weights and
    activations. `end_ids` end an output by themselves. `default_sampling` holds the generation config's values for
    fields that a request leaves out. `checkpoints` are what was loaded, hub ids now folders; None: as
    asked for.
    """

    vocab_size: int
    max_model_len: int
    max_encoder_len: int
    has_draft: bool
    dtype: str
    end_ids: frozenset[int] = frozenset()
    default_sampling: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: Checkpoints | None = None


class Engine(Protocol):
    """One running engine."""

    @property
    def facts(self) -> EngineFacts: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Step, None]:
        """Steps of one prompt until `finished`; without `request.stream` a single one, whose samples are whole. Closing
        the generator, or cancelling the task that reads it, aborts the request at once.

        Raises:
            InvalidRequest, EngineFailure, EngineDead: while it is read.
        """

    def uncounted(self) -> AbstractAsyncContextManager[None]:
        """Requests within the block are in no metric and not in the ledger: for those that no client sent."""

    async def set_draft_length(self, k: int) -> None:
        """From the next step on so many draft tokens are verified for each request, 0 ... the block's; returns once
        every data-parallel engine knows.

        Raises:
            EngineDead: its process is gone.
        """

    async def check_health(self) -> None:
        """Returns while the engine lives.

        Raises:
            EngineDead: its process is gone.
        """

    async def respond(self) -> None:
        """Returns when the engine is between two steps, hence never while it hangs.

        Raises:
            EngineDead: its process is gone.
        """

    def shutdown(self) -> None:
        """Ends the engine and its child processes; blocks until they are gone."""


class Progress(Protocol):
    """Told what loading is at, from any thread; `stage` is one word, `detail` a sentence."""

    def __call__(self, stage: str, detail: str) -> None: ...


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """All that an engine is built from. The identity's checkpoints may still be hub ids; the engine feeds `ledger`."""

    settings: Settings
    identity: Identity
    ledger: StepRecorder
    progress: Progress


EngineFactory = Callable[[EnginePlan], Engine]
"""Builds an engine, blocking; called in the loading thread, where importing vLLM harms nobody."""
