"""What the routers share: the gateway behind a request, a JSON body checked by a model, the model id it names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar, cast

from fastapi import Depends, Request
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from app.engine import Engine
from app.errors import (
    ApiError,
    BadRequest,
    BodyTooLarge,
    ClientGone,
    Deadline,
    Loading,
    NotFound,
    NotJson,
    Unauthorized,
    documented,
)
from app.gateway import Gateway
from app.scope import RequestScope
from app.text.tokenizing import LARGE, check_size

Body = TypeVar("Body", bound=BaseModel)


async def _gateway(request: Request) -> Gateway:  # a plain function would take a thread for each request
    return cast(Gateway, request.app.state.gateway)


ThisGateway = Annotated[Gateway, Depends(_gateway)]

BODY_ERRORS = documented(
    BadRequest, Unauthorized, NotFound, BodyTooLarge, NotJson, ApiError, Loading, Deadline
)
"""`responses=` of a route that reads its body with `read` and asks the engine."""


async def read(request: Request, gateway: Gateway, model: type[Body]) -> tuple[Engine, Body]:
    """The engine, and the body as `model`, parsed and checked in one pass.

    FastAPI's own body parameter would parse twice, answer 422, and take NaN for a number. A client may send half a body
    and stall, so reading has the request's deadline and ends with the server; the engine is asked for again afterwards,
    since it may be gone by then.

    Raises:
        NotJson: another content type than JSON's.
        Deadline, ShuttingDown, Dead: the body did not arrive in time.
        Loading, ShuttingDown, Dead: no engine to serve with.
        ClientGone: the client left before its end.
    """
    gateway.engine()
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise NotJson(f"Content-Type must be application/json, got {kind[:64]!r}")
    async with RequestScope(None, gateway.settings.request_timeout_s, gateway.running):
        try:
            raw = await request.body()
        except ClientDisconnect:
            raise ClientGone("the client closed the connection") from None
        body = await _parsed(raw, gateway, model)
    return gateway.engine(), body


async def _parsed(raw: bytes, gateway: Gateway, model: type[Body]) -> Body:
    if len(raw) < LARGE:
        return model.model_validate_json(raw)

    def parse() -> Body:
        check_size(raw)
        return model.model_validate_json(raw)

    # It holds the interpreter's lock for all its time, in whichever thread.
    return await gateway.tokenizing.submit(0, parse)


@asynccontextmanager
async def admitted(request: Request, gateway: Gateway) -> AsyncIterator[None]:
    """The lifetime of a request whose body was read, as a completion of one sequence has it: room for it, its deadline,
    and its end when the client leaves or the server stops.

    Raises:
        QueueFull, Deadline, ClientGone, ShuttingDown, Dead.
    """
    with gateway.admission.enter(1):
        async with RequestScope(request.receive, gateway.settings.request_timeout_s, gateway.running):
            yield


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra=` of a route that reads its body with `read`."""
    reference = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}}


def check_model(gateway: Gateway, model: str | None) -> None:
    """The name is one of the served ones; null means the first.

    Raises:
        NotFound: it is not (param `model`).
    """
    names = gateway.identity.served_model_names
    if model is not None and model not in names:
        raise NotFound(f"the model {model[:256]!r} does not exist; served: {', '.join(names)}", "model")
