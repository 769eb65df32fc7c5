"""Probes and metrics, open to everyone: `/health` (restart me), `/ready` (send me requests), `/metrics`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from pydantic import BaseModel

from app.errors import Loading
from app.routes.parts import ThisGateway

router = APIRouter(tags=["operations"])


class Status(BaseModel):
    """`phase`: loading, ready, draining, failed, dead or stopped; `stage` says what loading is at."""

    status: str
    phase: str
    stage: str
    seconds: float


def _status(gateway: ThisGateway, good: bool, response: Response) -> Status:
    if not good:
        response.status_code = 503
        response.headers.update(Loading.headers)
    return Status(
        status="ok" if good else "unavailable",
        phase=gateway.phase,
        stage=gateway.stage,
        seconds=round(gateway.progress.seconds, 1),
    )


_503: dict[int | str, dict[str, Any]] = {503: {"model": Status, "description": "Not now"}}


@router.get("/health", responses=_503)
async def health(gateway: ThisGateway, response: Response) -> Status:
    """200 while the process is worth keeping, loading included; 503 once the engine is lost."""
    return _status(gateway, not gateway.broken, response)


@router.get("/ready", responses=_503)
async def ready(gateway: ThisGateway, response: Response) -> Status:
    """200 while completions are served; 503 while loading, draining or broken, and while the engine does not answer."""
    return _status(gateway, gateway.ready, response)


@router.get("/metrics/", include_in_schema=False)
@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """The engine's own `vllm:*` series untouched, `t5gemma_*`, and HTTP counts.

    In the same format whatever is asked for: to a scraper that names no escaping, as Prometheus 2 does not,
    prometheus_client writes `vllm:` as `vllm_` in all but this one.
    """
    return Response(
        generate_latest(request.app.state.registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4}
    )
