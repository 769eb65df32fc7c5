"""`GET /drafts` (what is loaded) and `GET /drafts/stats` (how well it drafts)."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel

from app.drafts.available import available
from app.errors import Unauthorized, documented
from app.routes.parts import ThisGateway

router = APIRouter(tags=["drafts"])


class Position(BaseModel):
    """One position of the block, from 0. `rate` = accepted / drafts, `conditional_rate` = accepted / reached."""

    position: int
    proposed: int
    accepted: int
    rate: float | None
    conditional_rate: float | None


class Acceptance(BaseModel):
    """Sums and ratios over a span of time; ratios are null without traffic."""

    drafts: int
    draft_tokens: int
    accepted_tokens: int
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    per_position: list[Position]


class Window(Acceptance):
    seconds: float


class EncoderCache(BaseModel):
    """Since start: requests (each sample of one counts) whose prompt's encoder states were held already (`hits`) or
    were computed, the prompt tokens of both, and the bytes of the states that are held now.
    """

    hits: int
    misses: int
    tokens_saved: int
    tokens_encoded: int
    bytes_held: int


class Stats(BaseModel):
    """Since start, and of the last `window.seconds`; without a draft `family` and `k` are null and all counts 0."""

    family: str | None
    k: int | None
    lifetime: Acceptance
    window: Window
    encoder: EncoderCache


@router.get("/drafts", responses=documented(Unauthorized))
async def get_drafts(gateway: ThisGateway) -> dict[str, Any]:
    """The loaded draft and verifier (without a draft the draft's fields are null), what the draft did on a few prompts
    before the first request (`probe`; its `warning` says when it proved useless), and the drafts found in
    T5GEMMA_CHECKPOINTS_DIR. `dtype` is what was asked for until the engine, once loaded, says what it runs in.
    """
    folder = gateway.settings.checkpoints_dir
    others = await asyncio.to_thread(available, folder) if folder is not None else []
    loaded = {
        **gateway.identity.to_json(),
        "probe": gateway.probe and gateway.probe.to_json(),
        "available": [other.model_dump() for other in others],
    }
    return loaded if gateway.facts is None else {**loaded, "dtype": gateway.facts.dtype}


@router.get("/drafts/stats", responses=documented(Unauthorized))
async def get_stats(gateway: ThisGateway) -> Stats:
    """Acceptance of the draft, and what the encoder was spared."""
    identity, ledger = gateway.identity, gateway.ledger
    return Stats(
        family=identity.draft.family if identity.draft else None,
        k=identity.k,
        lifetime=Acceptance.model_validate(ledger.lifetime().to_json()),
        window=Window.model_validate({**ledger.window().to_json(), "seconds": ledger.window_s}),
        encoder=EncoderCache.model_validate(ledger.encoder.to_json()),
    )
