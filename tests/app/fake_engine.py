"""An engine port in memory: bytes are tokens, the output is a script, and time passes only when a test says so.

It keeps vLLM's manners that the gateway relies on: deltas when streaming and one whole output when not, a stop string
that is never shown, characters that are held back until their last byte, and an abort when its generator is closed.
"""

from __future__ import annotations

import asyncio
import codecs
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from app.drafts.ledger import StepRecorder
from app.engine import (
    EngineDead,
    EngineFacts,
    GenerateRequest,
    InvalidRequest,
    RequestTiming,
    Sample,
    SpecMetrics,
    Step,
    TokenLogprob,
)
from plugin.drafts.facts import Checkpoints
from plugin.drafts.steps import StepStats

EOS, BOS, FIRST_BYTE = 1, 2, 3
VOCAB = 300
BEYOND = "<image>"
"""A text that ends so has an id more than the model knows, as tokenizers have for images."""


class FakeTokenizer:
    """One token a UTF-8 byte, after the special ids."""

    max_chars_per_token = 4
    special_ids = frozenset({EOS, BOS})
    truncation_side: Literal["left", "right"] = "right"

    def encode(self, text: str, add_special_tokens: bool, enough: int | None = None) -> list[int]:
        ids = [BOS] * add_special_tokens + [byte + FIRST_BYTE for byte in text.encode()]
        return [*ids, VOCAB] if text.endswith(BEYOND) else ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return bytes(i - FIRST_BYTE for i in ids if FIRST_BYTE <= i < FIRST_BYTE + 256).decode(
            errors="replace"
        )

    def spellings(self, text: str, at_most: int, among: Collection[int] | None = None) -> list[list[int]]:
        return [self.encode(text, False)]

    def token(self, token_id: int) -> str:
        return self.decode([token_id], False) or f"<{token_id}>"


def tokens(text: str) -> list[int]:
    """Token ids of a text, without BOS."""
    return FakeTokenizer().encode(text, False)


@dataclass
class FakeEngine:
    """`script(request, sample)` gives the token ids of one sample, EOS included where it ends by itself."""

    script: Callable[[GenerateRequest, int], list[int]] = lambda request, sample: tokens(" and so on" * 40)
    per_step: int | Sequence[int] = 1
    """Tokens of a step; of several the steps take turns."""
    first_alone: bool = False
    """The first token comes before any draft, as vLLM's does."""
    delay_s: float = 0.0
    k: int = 0
    ledger: StepRecorder | None = None
    refuse: InvalidRequest | None = None
    fail_after: int | None = None
    failure: Exception = field(default_factory=lambda: RuntimeError("boom in /some/file.py"))
    max_model_len: int = 512
    max_encoder_len: int = 256
    dead: bool = False
    hold: asyncio.Event | None = None
    hangs: asyncio.Event | None = None
    """Until it is set the engine answers nothing; requests wait if it is `hold`, too."""
    seen: list[GenerateRequest] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    aborted: list[str] = field(default_factory=list)
    shut_down: bool = False
    step_times: list[float] = field(default_factory=list)
    child: Any = None
    lengths: list[int] = field(default_factory=list)
    """Every K that it was told."""
    seconds: Callable[[int], float] | None = None
    """How long a step lasts at K; None: nobody can tell."""
    checkpoints: Checkpoints | None = None

    def __post_init__(self) -> None:
        self.tokenizer = FakeTokenizer()
        self.has_draft = self.k > 0

    @property
    def facts(self) -> EngineFacts:
        return EngineFacts(
            VOCAB,
            self.max_model_len,
            self.max_encoder_len,
            self.has_draft,
            "float32",
            frozenset({EOS}),
            checkpoints=self.checkpoints,
        )

    @asynccontextmanager
    async def uncounted(self) -> AsyncIterator[None]:
        ledger, self.ledger = self.ledger, None
        try:
            yield
        finally:
            self.ledger = ledger

    async def set_draft_length(self, k: int) -> None:
        if self.dead:
            raise EngineDead("the engine process ended")
        self.lengths.append(k)
        self.k = k

    async def check_health(self) -> None:
        if self.dead:
            raise EngineDead("the engine process ended")

    async def respond(self) -> None:
        if self.hangs is not None:
            await self.hangs.wait()
        if self.dead:
            raise EngineDead("the engine process ended")

    def shutdown(self) -> None:
        self.shut_down = True
        if self.child is not None:
            self.child.terminate()
            self.child.join()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Step, None]:
        self.seen.append(request)
        if self.refuse is not None:
            raise self.refuse
        self.running.add(request.id)
        finished = False
        try:
            if self.hold is not None:
                await self.hold.wait()
            sequences = [_Sequence(self, request, i) for i in range(request.sampling.n)]
            count = 0
            while any(s.reason is None for s in sequences):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if self.dead:
                    raise EngineDead("the engine process ended")
                if self.fail_after is not None and count >= self.fail_after:
                    raise self.failure
                per_step = [self.per_step] if isinstance(self.per_step, int) else self.per_step
                size = per_step[count % len(per_step)]
                count += 1
                samples = [s.advance(size) for s in sequences if s.reason is None]
                self.step_times.append(time.monotonic())
                ended = all(s.reason is not None for s in sequences)
                if request.stream:
                    yield Step(samples, ended, RequestTiming(0.001, 0.002, 0.01) if ended else None)
            if not request.stream:
                yield Step([s.whole() for s in sequences], True, RequestTiming(0.001, 0.002, 0.01))
            finished = True
        finally:
            self.running.discard(request.id)
            if not finished:
                self.aborted.append(request.id)


class _Sequence:
    """One sample: its script, its decoder, and what it has shown so far."""

    def __init__(self, engine: FakeEngine, request: GenerateRequest, index: int) -> None:
        self._engine, self._sampling, self._index = engine, request.sampling, index
        self._ids = engine.script(request, index)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._position = 0
        self._text = ""
        self._shown = 0
        self._accepted: list[int] = []
        self._drafted: list[int] = []
        self.reason: Literal["stop", "length"] | None = None
        self._stop: str | int | None = None

    def advance(self, count: int) -> Sample:
        """The next tokens, cut at EOS, at a stop string or token, and at the limit."""
        new: list[int] = []
        drafts = self._engine.has_draft and not (self._engine.first_alone and not self._position)
        count = min(count, 1 + self._engine.k) if drafts else 1 if self._engine.has_draft else count
        while len(new) < count and self.reason is None:
            token = self._ids[self._position] if self._position < len(self._ids) else EOS
            self._position += 1
            new.append(token)
            self._take(token)
        if drafts:
            k, hits = self._engine.k, len(new) - 1
            self._accepted.append(hits)
            self._drafted.append(k)
            if self._engine.ledger is not None:
                lasted = self._engine.seconds(k) if self._engine.seconds is not None else None
                drafts = {k: (1, (1,) * hits)} if k else {}
                rows = len(self._engine.running)
                self._engine.ledger.record(StepStats(k, rows, lasted, drafts, wall=lasted or 0.0))
        return self._sample(self._delta(), new)

    def _take(self, token: int) -> None:
        if token == EOS and not self._sampling.ignore_eos:
            self.reason = "stop"
        elif token in self._sampling.stop_token_ids:
            self.reason, self._stop = "stop", token
        elif token >= FIRST_BYTE:
            self._text += self._decoder.decode(bytes([token - FIRST_BYTE]))
        hits = [(at, s) for s in self._sampling.stop if (at := self._text.find(s)) >= 0]
        if hits and self.reason is None:
            at, self._stop = min(hits)
            self._text, self.reason = self._text[:at], "stop"
        elif self.reason is None and self._position >= self._sampling.max_tokens:
            self.reason = "length"
        if self.reason is not None and not hits:
            self._text += self._decoder.decode(b"", True)

    def _delta(self) -> str:
        hold = 0 if self.reason else max((len(s) for s in self._sampling.stop), default=1) - 1
        end = max(self._shown, len(self._text) - hold)
        delta, self._shown = self._text[self._shown : end], end
        return delta

    def whole(self) -> Sample:
        self._shown = 0
        return self._sample(self._delta(), (self._ids + [EOS] * self._position)[: self._position])

    def _sample(self, text: str, ids: list[int]) -> Sample:
        spec = None
        if self.reason is not None and self._engine.has_draft:
            k = max(self._drafted, default=0)
            drafted = [hits for hits, k in zip(self._accepted, self._drafted, strict=True) if k]
            histogram = [drafted.count(j) for j in range(k + 1)]
            spec = SpecMetrics(k, histogram, sum(self._drafted), self._accepted, self._drafted)
        logprobs = None
        if self._sampling.logprobs is not None:
            logprobs = [self._logprob(token) for token in ids]
        return Sample(self._index, text, ids, logprobs, self.reason, self._stop, spec)

    def _logprob(self, token: int) -> TokenLogprob:
        count = self._sampling.logprobs or 0
        name = self._engine.tokenizer.token
        others = [(i, name(i), -2.0 - i) for i in range(65 + FIRST_BYTE, 65 + FIRST_BYTE + count)]
        return TokenLogprob(token, name(token), -0.5, ((token, name(token), -0.5), *others))
