"""One look at a running server: whether it serves, what is loaded, how it drafts, and what its engine does."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import httpx
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel, ValidationError

from app.drafts.report import Stats

TIMEOUT_S = 5.0
DRAFTS_EVERY_S = 10.0
"""Seconds after which it is asked again what is loaded, for which the server reads the checkpoints folder."""

State = Literal["ready", "loading", "draining", "failed", "dead", "stopped", "key_required", "unreachable"]
"""The server's phase as `/ready` names it, or why it could not be asked."""

_SERIES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "t5gemma_sequences_in_flight": "in_flight",
    "vllm:generation_tokens_total": "generated_tokens",
}


class _Ready(BaseModel):
    phase: Literal["ready", "loading", "draining", "failed", "dead", "stopped"]
    stage: str
    seconds: float


class _Loaded(BaseModel, extra="allow"):
    family: str | None
    verifier: dict[str, Any]


Model = TypeVar("Model", bound=BaseModel)


class _Unanswered(Exception):
    """The server cannot be asked: the state that this is, and why in words."""

    def __init__(self, state: State, reason: str) -> None:
        super().__init__(reason)
        self.state = state


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen. `stage` and `seconds` are those of loading; `reason` says why the server could not be asked;
    `drafts` is what GET /drafts answers, `stats` GET /drafts/stats, both None where it could not; `engine` has what
    /metrics told of `running`, `waiting` and `in_flight` sequences and of `generated_tokens` since start.
    """

    state: State
    reason: str | None = None
    stage: str | None = None
    seconds: float | None = None
    drafts: dict[str, Any] | None = None
    stats: Stats | None = None
    engine: dict[str, int] = field(default_factory=dict)


class Server:
    """A server that is looked at again and again."""

    def __init__(self, client: httpx.AsyncClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clock = client, clock
        self._drafts: dict[str, Any] | None = None
        self._state: State | None = None
        self._asked = clock()

    async def look(self) -> Look:
        """What there is to see now; what goes wrong is in it."""
        try:
            look = await self._look()
        except _Unanswered as error:
            look = Look(error.state, str(error))
        except (httpx.HTTPError, ValueError) as error:  # the latter of metrics that are none
            words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            look = Look("unreachable", words)
        self._state = look.state
        return look

    async def _look(self) -> Look:
        ready = await self._ready()
        stats = await self._get("/drafts/stats", Stats)
        if self._drafts is None or ready.phase != self._state or self._clock() - self._asked > DRAFTS_EVERY_S:
            self._drafts = (await self._get("/drafts", _Loaded)).model_dump()
            self._asked = self._clock()
        metrics = await self._client.get("/metrics")
        loading = ready.phase == "loading"
        return Look(
            ready.phase,
            stage=ready.stage if loading else None,
            seconds=ready.seconds if loading else None,
            drafts=self._drafts,
            stats=stats,
            engine=engine_of(metrics.text) if metrics.is_success else {},
        )

    async def _ready(self) -> _Ready:
        answer = await self._client.get("/ready")
        if answer.status_code == httpx.codes.NOT_FOUND:  # plain `vllm serve`, which listens once it is loaded
            healthy = (await self._client.get("/health")).is_success
            return _Ready(phase="ready" if healthy else "dead", stage="", seconds=0)
        return _read(answer, _Ready)

    async def _get(self, path: str, model: type[Model]) -> Model:
        answer = await self._client.get(path)
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            with_key = "authorization" in self._client.headers
            raise _Unanswered(
                "key_required",
                "the key in OPENAI_API_KEY is none of the server's"
                if with_key
                else "the server asks for a key: put it into OPENAI_API_KEY",
            )
        return _read(answer, model)


def _read(answer: httpx.Response, model: type[Model]) -> Model:
    try:
        return model.model_validate_json(answer.content)
    except ValidationError:
        path, status = answer.request.url.path, answer.status_code
        raise _Unanswered(
            "unreachable", f"{path} answers {status}, and not as a T5Gemma 2 server does"
        ) from None


def engine_of(text: str) -> dict[str, int]:
    """Our part of Prometheus text, by name; engines are added up, and what is not there is left out."""
    lines = [line for line in text.splitlines() if line.startswith(tuple(_SERIES))]
    sums: dict[str, int] = {}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            if name := _SERIES.get(sample.name):
                sums[name] = sums.get(name, 0) + int(sample.value)
    return sums
