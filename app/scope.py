"""The lifetime of one request: it ends by itself, or because its client left, its deadline passed or the server stops.

All three interruptions arrive while some await deep inside the engine's iterator is pending, so all take the same way:
cancel the request's own task, and turn the cancellation into the reason when it surfaces. The cancellation closes the
engine's generators on its way up, which is what aborts the request in the engine at once.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from starlette.types import Receive

from app.errors import ApiError, ClientGone, Deadline


class Running(set["RequestScope"]):
    """The server's live scopes. Once closed for a reason, a later scope is refused with it as it is entered."""

    closed: ApiError | None = None

    def close(self, reason: ApiError) -> None:
        """Ends every live scope and all that would follow."""
        self.closed = reason
        self.interrupt(reason)

    def interrupt(self, reason: ApiError) -> None:
        """Ends every live scope."""
        for scope in list(self):
            scope.interrupt(reason)


class RequestScope:
    """`async with RequestScope(...)`: raises the reason (an ApiError) in place of the cancellation it caused."""

    def __init__(self, receive: Receive | None, deadline_s: float, running: Running) -> None:
        """`receive`, which must have delivered the whole body already, tells when the client leaves; None where the
        scope's own body reads from the client.
        """
        self._receive = receive
        self._deadline_s = deadline_s
        self._running = running
        self._reason: ApiError | None = None
        self._done = False

    async def __aenter__(self) -> Self:
        if self._running.closed is not None:
            raise self._running.closed
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._running.add(self)
        loop = asyncio.get_running_loop()
        message = f"the request took longer than {self._deadline_s:g} s (T5GEMMA_REQUEST_TIMEOUT_S)"
        self._timer = loop.call_later(self._deadline_s, self.interrupt, Deadline(message))
        self._watcher = None if self._receive is None else loop.create_task(self._watch_client(self._receive))
        return self

    def interrupt(self, reason: ApiError) -> None:
        """Ends the request with this reason; the first reason stays."""
        if self._reason is None and not self._done:
            self._reason = reason
            self._task.cancel()

    async def _watch_client(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.interrupt(ClientGone("the client closed the connection"))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done = True
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        self._running.discard(self)
        if self._reason is None:
            return
        if self._task.uncancel() == 0 and (kind is None or kind is asyncio.CancelledError):
            raise self._reason from None
