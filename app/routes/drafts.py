"""`GET /drafts` (what is loaded) and `GET /drafts/stats` (how well it drafts, and what that is worth)."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter

from app.drafts.available import available
from app.drafts.report import Sequences, Stats, former, stats
from app.errors import Unauthorized, documented
from app.routes.parts import ThisGateway
from app.routes.switches import fixed, forbidden

router = APIRouter(tags=["drafts"])


@router.get("/drafts", responses=documented(Unauthorized))
async def get_drafts(gateway: ThisGateway) -> dict[str, Any]:
    """The loaded draft and verifier (without a draft the draft's fields are null), what the draft did on a few prompts
    before the first request (`probe`; its `warning` says when it proved useless), and the drafts found in
    T5GEMMA_CHECKPOINTS_DIR, each with whether it fits. `dtype` is what was asked for until the engine, once loaded,
    says what it runs in.
    """
    folder = gateway.settings.checkpoints_dir
    others = []
    if folder is not None:
        others = await asyncio.to_thread(available, folder, gateway.identity, gateway.settings)
    loaded = {
        **gateway.identity.to_json(),
        "probe": gateway.probe and gateway.probe.to_json(),
        "available": [other.model_dump() for other in others],
        "switch_refusal": _switch_refusal(gateway),
    }
    drafting = gateway.drafting if gateway.identity.draft is not None else None
    if drafting is None:
        loaded |= {"asked": None, "baseline_key": None}
    else:
        loaded |= {"k": drafting.k, "asked": drafting.asked, "baseline_key": drafting.baseline_key}
    return loaded if gateway.facts is None else {**loaded, "dtype": gateway.facts.dtype}


@router.get("/drafts/stats", responses=documented(Unauthorized))
async def get_stats(gateway: ThisGateway) -> Stats:
    """Acceptance of the draft by K, the speed-up that it gives now, the K that would give most, and what the encoder
    was spared.
    """
    draft = gateway.identity.draft
    found = stats(draft.family if draft else None, gateway.identity.k, gateway.ledger, gateway.drafting)
    if gateway.admission is not None:
        found.sequences = Sequences.of(gateway.admission.in_flight, gateway.admission.batch)
    found.history = [former(path, drafting) for path, drafting in gateway.history.items()]
    return found


def _switch_refusal(gateway: ThisGateway) -> str | None:
    if gateway.drafting is None:
        return "plain `vllm serve` keeps its K"
    return forbidden(gateway.settings) or fixed(gateway.drafting)
