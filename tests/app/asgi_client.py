"""One raw ASGI request: for tests that must see each message as it is sent, or leave in the middle."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any


class Connection:
    """`POST` of a JSON body, started at once. `reads` messages are taken, then the socket blocks; None: all are. With
    `stalls` only half of the body is sent until `send_rest`.
    """

    def __init__(
        self,
        app: Any,
        body: dict[str, Any],
        path: str = "/v1/completions",
        reads: int | None = None,
        stalls: bool = False,
    ) -> None:
        self.sent: list[Any] = []
        self.times: list[float] = []
        self._reads = reads
        self._left = asyncio.Event()
        self._news = asyncio.Condition()
        whole = json.dumps(body).encode()
        self._parts = [whole[: len(whole) // 2], whole[len(whole) // 2 :]]
        self._next = asyncio.Event()
        self._stalls = stalls
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"server"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("server", 80),
        }
        self._task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._stalls and len(self._parts) == 1:
            await self._next.wait()
        if self._parts and not self._left.is_set():
            part = self._parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(self._parts)}
        await self._left.wait()
        return {"type": "http.disconnect"}

    @property
    def status(self) -> int:
        """The reply's status."""
        return int(self.sent[0]["status"])

    def send_rest(self) -> None:
        """Ends the stall."""
        self._next.set()

    async def _send(self, message: dict[str, Any]) -> None:
        if self._reads is not None and len(self.sent) >= self._reads:
            await self._left.wait()
        self.sent.append(message)
        self.times.append(time.monotonic())
        async with self._news:
            self._news.notify_all()

    async def body_parts(self, count: int) -> None:
        """Until so many body messages were sent."""
        async with asyncio.timeout(5), self._news:
            await self._news.wait_for(lambda: sum(bool(m.get("body")) for m in self.sent) >= count)

    async def leave(self) -> None:
        """Closes the socket and waits until the application is done with it."""
        self._left.set()
        self._next.set()
        await asyncio.wait_for(asyncio.gather(self._task, return_exceptions=True), 10)

    async def end(self) -> None:
        """Until the application has answered."""
        await asyncio.wait_for(self._task, 10)
