"""`POST /drafts/k` and `POST /drafts/active`: another K, or another draft, while the server runs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict

from app.drafts.available import available, identity_with
from app.drafts.drafting import Asked, Drafting
from app.errors import ApiError, BadRequest, Conflict, Forbidden, NotFound, documented
from app.gateway import Gateway
from app.routes.parts import BODY_ERRORS, ThisGateway, body_schema, read

router = APIRouter(tags=["drafts"])

SWITCH_ERRORS = {**BODY_ERRORS, **documented(Forbidden, Conflict)}


def _length(value: object) -> object:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise ValueError('must be a whole number from 0, or "auto"')


class KRequest(BaseModel):
    """`k`: draft tokens a step, 0 ... block_size - 1, or `auto`: what proves fastest."""

    model_config = ConfigDict(extra="forbid")

    k: Annotated[Asked, BeforeValidator(_length)]


class KReply(BaseModel):
    """`k` is in force from the next step on; `asked` is what was asked for, `previous` the K before."""

    k: int
    asked: Asked
    previous: int


@router.post("/drafts/k", responses=SWITCH_ERRORS, openapi_extra=body_schema(KRequest))
async def post_k(request: Request, gateway: ThisGateway) -> KReply:
    """Draft so many tokens a step, for requests that run and those that come; nothing is rebuilt and no answer changes.
    0 drafts nothing. Needs an API key; where none are set, T5GEMMA_ALLOW_SWITCH.
    """
    check_allowed(gateway)
    _, asked = await read(request, gateway, KRequest)
    drafting = gateway.drafting
    if not drafting.max_k:
        raise Conflict("no draft is served: there is nothing to set K of", "k")
    if not drafting.switchable:
        raise Conflict("the block is as short as K (T5GEMMA_SHORT_BLOCK), which cannot be changed", "k")
    if asked.k != "auto" and asked.k > drafting.max_k:
        raise BadRequest(f"k: {asked.k} is above {drafting.max_k}, the draft's block_size - 1", "k")
    previous = drafting.k
    await drafting.choose(asked.k)
    return KReply(k=drafting.k, asked=drafting.asked, previous=previous)


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
    if not gateway.settings.api_keys and not gateway.settings.allow_switch:
        raise Forbidden("switching needs API keys (T5GEMMA_API_KEYS) or T5GEMMA_ALLOW_SWITCH=true")
