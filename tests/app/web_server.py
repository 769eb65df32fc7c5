"""An application on a socket of this process, for clients that want one."""

from __future__ import annotations

import threading
import time
from types import TracebackType

import uvicorn
from fastapi import FastAPI


class WebServer:
    """`with WebServer(app) as url:`; the engine is loaded when the block begins."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None))
        self._thread = threading.Thread(target=self._server.run)

    def __enter__(self) -> str:
        self._thread.start()
        while not self._server.started or self._app.state.gateway.phase != "ready":
            time.sleep(0.01)
        return f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join()
