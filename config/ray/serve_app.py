"""Replicas on a Ray cluster: `serve run config/ray/serve.yaml`, or `config/ray/demo.yaml` on the CPU.

Ray makes one gateway, hence one engine, for each replica; the nodes' environment holds the settings. A replica counts
as running once its engine serves, and is replaced when its engine is lost. Beside Ray's proxy, which takes any replica,
each answers on a port of its own, the first free one of its node from 9400 on: there its /metrics are scraped.
"""

from __future__ import annotations

import asyncio
import socket
from itertools import count

import uvicorn
from fastapi import FastAPI
from ray import serve

import app

FIRST_PORT = 9400


def build_app() -> FastAPI:
    """The application of one replica; checkpoints are resolved on the replica's node."""
    application: FastAPI = app.main
    return application


def first_free_port(first: int) -> socket.socket:
    """A socket that listens on it, on all of the node's addresses; `first` and 63 more are tried."""
    for port in count(first):
        try:
            return socket.create_server(("", port))
        except OSError:
            if port >= first + 64:
                raise
    raise AssertionError


@serve.deployment(name="t5gemma2", ray_actor_options={"num_gpus": 1}, max_ongoing_requests=256)
@serve.ingress(build_app)
class Gateway:
    """Routes, lifespan and metrics are the gateway's own."""

    async def __init__(self) -> None:
        # Ray runs the application's lifespan; this server only answers.
        server = uvicorn.Server(uvicorn.Config(build_app(), lifespan="off", log_config=None))
        self._own_port = asyncio.create_task(server.serve(sockets=[first_free_port(FIRST_PORT)]))

    async def check_health(self) -> None:
        """Ray's probe. It asks once before it calls the replica running, and takes what long that needs.

        Raises:
            RuntimeError: the engine did not start, or died; Ray then makes another replica.
        """
        gateway = build_app().state.gateway
        await gateway.loaded()
        if gateway.broken:
            raise RuntimeError(f"the engine is {gateway.phase}: {gateway.failure}")


deployment = Gateway.bind()  # type: ignore[attr-defined]
