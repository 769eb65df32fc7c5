"""`POST /drafts/k` and `POST /drafts/active`: another K, or another draft, while the server runs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from app.config.settings import Settings
from app.drafts.available import available, identity_with
from app.drafts.drafting import Asked, Drafting
from app.drafts.report import TemporaryK
from app.errors import ApiError, BadRequest, Conflict, Forbidden, NotFound, documented
from app.gateway import Gateway
from app.routes.parts import BODY_ERRORS, ThisGateway, body_schema, read

router = APIRouter(tags=["drafts"])

LONGEST_S = 600
"""Seconds that a temporary K may be asked for at most."""
SWITCH_ERRORS = {**BODY_ERRORS, **documented(Forbidden, Conflict)}


def _length(value: object) -> object:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise ValueError('must be a whole number from 0, or "auto"')


class KRequest(BaseModel):
    """`k`: draft tokens a step, 0 ... block_size - 1, or `auto`: what proves fastest. `seconds`: for so long; then what
    was asked for before is asked for again.
    """

    model_config = ConfigDict(extra="forbid")

    k: Annotated[Asked, BeforeValidator(_length)]
    seconds: Annotated[float, Field(strict=True, gt=0, le=LONGEST_S)] | None = None


class KReply(BaseModel):
    """`k` is in force from the next step on; `asked` is what was asked for, `previous` the K before; `temporary` says
    what comes when, if K was asked for for a time.
    """

    k: int
    asked: Asked
    previous: int
    temporary: TemporaryK | None


@router.post("/drafts/k", responses=SWITCH_ERRORS, openapi_extra=body_schema(KRequest))
async def post_k(request: Request, gateway: ThisGateway) -> KReply:
    """Draft so many tokens a step, for requests that run and those that come; nothing is rebuilt and no answer changes.
    0 drafts nothing. With `seconds` for a time: a client that is killed in the middle of a comparison leaves no other K
    behind, and no window measures another meanwhile. Needs an API key; where none are set, T5GEMMA_ALLOW_SWITCH.
    """
    check_allowed(gateway)
    _, asked = await read(request, gateway, KRequest)
    drafting = gateway.drafting
    if (refusal := fixed(drafting)) is not None:
        raise Conflict(refusal, "k")
    if asked.k != "auto" and asked.k > drafting.max_k:
        raise BadRequest(f"k: {asked.k} is above {drafting.max_k}, the draft's block_size - 1", "k")
    previous = drafting.k
    k = await drafting.choose(asked.k, asked.seconds)
    return KReply(k=k, asked=asked.k, previous=previous, temporary=TemporaryK.of(drafting))


class ActiveRequest(BaseModel):
    """`draft`: a name of `available` of GET /drafts."""

    model_config = ConfigDict(extra="forbid")

    draft: str


class ActiveReply(BaseModel):
    """What is served now."""

    draft: str
    family: str
    k: int
    seconds: float


@router.post("/drafts/active", responses=SWITCH_ERRORS, openapi_extra=body_schema(ActiveRequest))
async def post_active(request: Request, gateway: ThisGateway) -> ActiveReply:
    """Serve another draft of T5GEMMA_CHECKPOINTS_DIR. Accepted requests end first; until the engine is built anew,
    which takes as long as a start, new ones get 503 with Retry-After. The former draft is served again when that fails.
    The reply comes when it is done; leaving does not stop it. Who may: as for POST /drafts/k.
    """
    check_allowed(gateway)
    _, asked = await read(request, gateway, ActiveRequest)
    settings, folder = gateway.settings, gateway.settings.checkpoints_dir
    if folder is None:
        raise Conflict("T5GEMMA_CHECKPOINTS_DIR is not set: there is no draft to choose", "draft")
    found = {one.name: one for one in await asyncio.to_thread(available, folder, gateway.identity, settings)}
    if (chosen := found.get(asked.draft)) is None:
        raise NotFound(
            f"draft: no {asked.draft[:256]!r} in T5GEMMA_CHECKPOINTS_DIR; there: {', '.join(found)}", "draft"
        )
    if chosen.misfit is not None:
        raise Conflict(f"draft: {chosen.misfit}", "draft")
    began = time.monotonic()
    if not chosen.active:
        identity = await asyncio.to_thread(identity_with, Path(chosen.path), gateway.identity, settings)
        draft = identity.draft
        assert draft is not None
        drafting = gateway.history.get(draft.path) or Drafting(draft, identity.k, settings)
        await asyncio.shield(gateway.in_background(gateway.reload(identity, drafting)))
        if gateway.switch_failure is not None:
            raise ApiError(
                f"{chosen.name} could not be served, the former draft is again: {gateway.switch_failure}"
            )
    assert gateway.identity.draft is not None
    return ActiveReply(
        draft=chosen.name,
        family=gateway.identity.draft.family,
        k=gateway.drafting.k,
        seconds=round(time.monotonic() - began, 1),
    )


def check_allowed(gateway: Gateway) -> None:
    """Whoever comes this far has shown a key, where there are keys.

    Raises:
        Forbidden: there are none, and switching without is not allowed.
    """
    if (refusal := forbidden(gateway.settings)) is not None:
        raise Forbidden(refusal)


def forbidden(settings: Settings) -> str | None:
    """Why nobody may switch, if nobody may."""
    if settings.api_keys or settings.allow_switch:
        return None
    return "switching needs API keys (T5GEMMA_API_KEYS) or T5GEMMA_ALLOW_SWITCH=true"


def fixed(drafting: Drafting) -> str | None:
    """Why K cannot be another, if it cannot."""
    if not drafting.max_k:
        return "no draft is served: there is nothing to set K of"
    if not drafting.switchable:
        return "the block is as short as K (T5GEMMA_SHORT_BLOCK), which cannot be changed"
    return None
