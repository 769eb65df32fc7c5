"""Replicas on a Ray cluster: `pip install .[cuda,ray]`, then `serve run config/ray/serve.yaml`.

Ray makes one gateway, hence one engine, for each replica; the nodes' environment holds the settings.
"""

from __future__ import annotations

from fastapi import FastAPI
from ray import serve

import app


def build_app() -> FastAPI:
    """The application of one replica; checkpoints are resolved on the replica's node."""
    application: FastAPI = app.main
    return application


@serve.deployment(name="t5gemma2", ray_actor_options={"num_gpus": 1}, max_ongoing_requests=256)
@serve.ingress(build_app)
class Gateway:
    """Routes, lifespan and metrics are the gateway's own."""


deployment = Gateway.bind()  # type: ignore[attr-defined]
