"""What GET /drafts/stats says of the draft, as JSON: acceptance by K, and what the draft is worth."""

from __future__ import annotations

import math
from dataclasses import asdict

from pydantic import BaseModel

from app.drafts.drafting import Asked, Drafting
from app.drafts.estimate import Origin, Snapshot, Speedup
from app.drafts.ledger import Counts, Ledger


class Position(BaseModel):
    """One position of the block, from 0. `rate` = accepted / drafts, `conditional_rate` = accepted / reached."""

    position: int
    proposed: int
    accepted: int
    rate: float | None
    conditional_rate: float | None


class Acceptance(BaseModel):
    """Sums and ratios over a span of time, of drafts of one K; ratios are null without traffic."""

    drafts: int
    draft_tokens: int
    accepted_tokens: int
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    per_position: list[Position]

    @classmethod
    def of(cls, counts: Counts) -> Acceptance:
        return cls.model_validate(counts.to_json())


class Window(Acceptance):
    seconds: float


class AtK(BaseModel):
    """Acceptance of drafts of `k` tokens."""

    k: int
    lifetime: Acceptance
    window: Window


class SpeedupRange(BaseModel):
    """Tokens/s over no draft: `value` of decode steps, `low` and `high` two standard errors away; `overall` of what was
    served, with admissions, the way to the clients and empty places, which no draft shortens. `origin` says where the
    time of a step without a draft comes from, live traffic or a stored benchmark, and `age_s` how old its newest is.
    """

    value: float
    low: float
    high: float
    overall: float
    origin: Origin
    age_s: float


class StepTime(BaseModel):
    """Steps at `k` in the present batch size: how long one takes now and the standard error of that, how many were
    timed, how old the newest is; tokens of a step, and the speed-up, where they are known.
    """

    k: int
    step_seconds: float
    error_seconds: float
    timed_steps: int
    age_s: float
    mean_acceptance_length: float | None
    speedup: float | None


class BaselineTime(BaseModel):
    """Steps without a draft in batches of up to `batch` requests."""

    batch: int
    step_seconds: float
    error_seconds: float
    timed_steps: int
    age_s: float
    origin: Origin


class Estimate(BaseModel):
    """What the draft is worth now. `batch`: the present batch size, as the largest that is timed together with it.
    Whatever is null has its reason beside it.
    """

    batch: int | None = None
    speedup: SpeedupRange | None = None
    speedup_reason: str | None = None
    recommended_k: int | None = None
    recommended_reason: str | None = None
    by_k: list[StepTime] = []
    baselines: list[BaselineTime] = []


class EncoderCache(BaseModel):
    """Since start: requests (each sample of one counts) whose prompt's encoder states were held already (`hits`) or
    were computed, the prompt tokens of both, and the bytes of the states that are held now.
    """

    hits: int
    misses: int
    tokens_saved: int
    tokens_encoded: int
    bytes_held: int


class Sequences(BaseModel):
    """Sequences that the gateway has taken and not ended: as many as fit a batch run, the others wait."""

    running: int
    waiting: int

    @classmethod
    def of(cls, in_flight: int, batch: int) -> Sequences:
        return cls(running=min(in_flight, batch), waiting=max(0, in_flight - batch))


class TemporaryK(BaseModel):
    """The present K holds for `seconds_left` more; `then` is asked for again, unless somebody asks before."""

    seconds_left: float
    then: Asked

    @classmethod
    def of(cls, drafting: Drafting) -> TemporaryK | None:
        """None where K holds until another is asked for."""
        if drafting.temporary is None:
            return None
        seconds_left = max(0.0, drafting.temporary.until - drafting.clock())
        return cls(seconds_left=round(seconds_left, 1), then=drafting.temporary.then)


class Former(BaseModel):
    """What a draft achieved that was served before the present one."""

    draft: str
    by_k: list[AtK]


class Stats(BaseModel):
    """`k` is what is drafted a step now, `asked` what was asked for, `temporary` for how long, if not for good;
    `lifetime` (since start) and `window` (the last `window.seconds`) are of that K, `by_k` of each that was used;
    `history` has the drafts that were served before. Without a draft `family`, `k` and `asked` are null and all counts
    0. `sequences` is null on plain `vllm serve`.
    """

    family: str | None
    k: int | None
    asked: Asked | None
    temporary: TemporaryK | None = None
    lifetime: Acceptance
    window: Window
    by_k: list[AtK]
    estimate: Estimate
    encoder: EncoderCache
    sequences: Sequences | None = None
    history: list[Former] = []


def at_k(ledger: Ledger, k: int) -> AtK:
    """What drafts of `k` tokens achieved."""
    window = {**ledger.window(k).to_json(), "seconds": ledger.window_s}
    return AtK(k=k, lifetime=Acceptance.of(ledger.lifetime(k)), window=Window.model_validate(window))


def stats(family: str | None, k: int | None, ledger: Ledger, drafting: Drafting | None) -> Stats:
    """The whole reply; `drafting` is None where nothing measures, on plain `vllm serve`."""
    if drafting is not None and k is not None:
        k = drafting.k
    now = at_k(ledger, k or 0)
    return Stats(
        family=family,
        k=k,
        asked=None if k is None else drafting.asked if drafting is not None else k,
        temporary=TemporaryK.of(drafting) if drafting is not None else None,
        lifetime=now.lifetime,
        window=now.window,
        by_k=[at_k(ledger, each) for each in ledger.ks],
        estimate=estimate(k, drafting),
        encoder=EncoderCache.model_validate(ledger.encoder.to_json()),
    )


def former(draft: str, drafting: Drafting) -> Former:
    """What a draft achieved before another took its place; `draft` is its folder or hub id."""
    ledger = drafting.ledger
    return Former(draft=draft, by_k=[at_k(ledger, k) for k in ledger.ks])


def estimate(k: int | None, drafting: Drafting | None) -> Estimate:
    """What the draft is worth at K = `k`, or why that is not known."""
    if k is None or drafting is None:
        why = "no draft is served" if k is None else "the gateway measures it, plain `vllm serve` does not"
        return Estimate(speedup_reason=why, recommended_reason=why)
    known = drafting.estimator.snapshot()
    if known is None:
        why = "no request has run yet"
        return Estimate(speedup_reason=why, recommended_reason=why, baselines=_baselines(drafting))
    speedup, recommended = known.speedup(k), known.recommendation(k)
    return Estimate(
        batch=known.batch,
        speedup=_range(speedup) if isinstance(speedup, Speedup) else None,
        speedup_reason=speedup if isinstance(speedup, str) else None,
        recommended_k=recommended.k,
        recommended_reason=recommended.reason,
        by_k=[_step_time(known, each) for each in known.seconds],
        baselines=_baselines(drafting),
    )


def _range(found: Speedup) -> SpeedupRange:
    return SpeedupRange(**asdict(found))


def _step_time(known: Snapshot, k: int) -> StepTime:
    timed, speedup = known.seconds[k], known.speedup(k)
    return StepTime(
        k=k,
        step_seconds=timed.value,
        error_seconds=timed.value * math.hypot(timed.relative_error, timed.shared),
        timed_steps=timed.steps,
        age_s=known.now - timed.when,
        mean_acceptance_length=known.curve.length(k) if k <= known.curve.max_k else None,
        speedup=speedup.value if isinstance(speedup, Speedup) else None,
    )


def _baselines(drafting: Drafting) -> list[BaselineTime]:
    return [
        BaselineTime(
            batch=batch,
            step_seconds=timed.value,
            error_seconds=timed.error,
            timed_steps=timed.steps,
            age_s=drafting.clock() - timed.when,
            origin=origin,
        )
        for batch, (timed, origin) in drafting.estimator.baselines().items()
    ]
