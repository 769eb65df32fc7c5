"""An application on a socket of this process, for clients that want one."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp


class WebServer:
    """`with WebServer(app) as url:`; the engine is loaded when the block begins, unless `at_once`."""

    def __init__(
        self, app: FastAPI, at_once: bool = False, wrapped: ASGIApp | None = None, **options: Any
    ) -> None:
        """`wrapped`: what is served, where that is more than the application; `options` are uvicorn's."""
        self._app, self._at_once = app, at_once
        self._server = uvicorn.Server(uvicorn.Config(wrapped or app, port=0, log_config=None, **options))
        self._thread = threading.Thread(target=self._server.run)

    def __enter__(self) -> str:
        self._thread.start()
        while not self._server.started or not (self._at_once or self._app.state.gateway.phase == "ready"):
            time.sleep(0.01)
        return f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join()
