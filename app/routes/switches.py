"""`POST /drafts/k`: another K while the server runs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict

from app.drafts.drafting import Asked
from app.errors import BadRequest, Conflict, Forbidden, documented
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


def check_allowed(gateway: Gateway) -> None:
    """Whoever comes this far has shown a key, where there are keys.

    Raises:
        Forbidden: there are none, and switching without is not allowed.
    """
    if not gateway.settings.api_keys and not gateway.settings.allow_switch:
        raise Forbidden("switching needs API keys (T5GEMMA_API_KEYS) or T5GEMMA_ALLOW_SWITCH=true")
