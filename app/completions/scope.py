"""The lifetime of one request: it ends by itself, or because its client left, its deadline passed or the
server stops.

All three interruptions arrive while some await deep inside the engine's iterator is pending, so all take the
same way: cancel the request's own task, and turn the cancellation into the reason when it surfaces. The
cancellation closes the engine's generators on its way up, which is what aborts the request in the engine at
once.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from starlette.types import Receive

from app.errors import ApiError, ClientGone, Deadline


class RequestScope:
    """`async with RequestScope(...)`: raises the reason (an ApiError) in place of the cancellation it
    caused."""

    def __init__(self, receive: Receive, deadline_s: float, running: set[RequestScope]) -> None:
        """`receive` must have delivered the whole body already; `running` is the server's set of live
        scopes."""
        self._receive = receive
        self._deadline_s = deadline_s
        self._running = running
        self._reason: ApiError | None = None
        self._done = False

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._running.add(self)
        loop = asyncio.get_running_loop()
        message = f"the request took longer than {self._deadline_s:g} s (T5GEMMA_REQUEST_TIMEOUT_S)"
        self._timer = loop.call_later(self._deadline_s, self.interrupt, Deadline(message))
        self._watcher = loop.create_task(self._watch_client())
        return self

    def interrupt(self, reason: ApiError) -> None:
        """Ends the request with this reason; the first reason stays."""
        if self._reason is None and not self._done:
            self._reason = reason
            self._task.cancel()

    async def _watch_client(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.interrupt(ClientGone("the client closed the connection"))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done = True
        self._timer.cancel()
        self._watcher.cancel()
        self._running.discard(self)
        if self._reason is None:
            return
        if self._task.uncancel() == 0 and (kind is None or kind is asyncio.CancelledError):
            raise self._reason from None
