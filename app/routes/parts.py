"""What the routers share: the server behind a request, a JSON body checked by a model, the model id it
names."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar, cast

from fastapi import Depends, Request
from pydantic import BaseModel

from app.errors import NotFound, NotJson
from app.gateway import Gateway

Body = TypeVar("Body", bound=BaseModel)


def _gateway(request: Request) -> Gateway:
    return cast(Gateway, request.app.state.gateway)


Server = Annotated[Gateway, Depends(_gateway)]


async def read(request: Request, model: type[Body]) -> Body:
    """The body as `model`, parsed and checked in one pass; NotJson for another content type than JSON's.

    FastAPI's own body parameter would parse twice, answer 422, and take NaN for a number.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise NotJson(f"Content-Type must be application/json, got {kind[:64]!r}")
    return model.model_validate_json(await request.body())


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra=` of a route that reads its body with `read`."""
    reference = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}}


def check_model(server: Gateway, model: str | None) -> None:
    """NotFound (param `model`) unless the name is one of the served ones; null means the first."""
    names = server.identity.served_model_names
    if model is not None and model not in names:
        raise NotFound(f"the model {model[:256]!r} does not exist; served: {', '.join(names)}", "model")
