"""A bound for a request's head: the request line and all headers, and what chunked bodies have beside their content.

uvicorn's protocol over httptools, which it takes by itself, gathers a head of any size in memory before an application
hears of it; one over h11 has a bound of its own (16 KiB, 400). The running server gets a subclass of its protocol.
Unnecessary once uvicorn bounds heads under httptools, too.
"""

from __future__ import annotations

import asyncio
import json
import logging
from functools import cache
from typing import Final

from app.errors import HeadTooLarge, envelope
from app.logs import event
from app.process.uvicorn_command import running_config

log = logging.getLogger("app.http")

HEAD_BYTES: Final = 65_536


def bound_heads() -> None:
    """Lets the uvicorn that runs this application take no larger heads, from the next connection on."""
    config = running_config()
    if config is None:
        return
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:  # httptools is not installed, so that uvicorn takes h11
        return
    if config.http_protocol_class is HttpToolsProtocol:
        config.http_protocol_class = bounded(HttpToolsProtocol)


@cache
def bounded(stock: type[asyncio.Protocol]) -> type[asyncio.Protocol]:
    """The subclass of uvicorn's `HttpToolsProtocol`. It counts what the parser hands over and, since that keeps a
    header to itself until it is whole, the bytes that arrived without anything of a body.
    """

    class BoundedHeads(stock):  # type: ignore[misc, valid-type]
        _head = _unclaimed = 0
        _refused = False

        def data_received(self, data: bytes) -> None:
            if self._refused:  # what was on its way when the connection was closed
                return
            self._unclaimed += len(data)
            super().data_received(data)
            if self._unclaimed > HEAD_BYTES and not self.transport.is_closing():
                self._refuse()

        def on_message_begin(self) -> None:
            self._head = self._unclaimed = 0
            super().on_message_begin()

        def on_url(self, url: bytes) -> None:
            self._count(len(url))
            super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            self._count(len(name) + len(value) + len(b": \r\n"))
            super().on_header(name, value)

        def on_body(self, body: bytes) -> None:
            self._unclaimed = 0
            super().on_body(body)

        def _count(self, size: int) -> None:
            self._head += size
            if self._head > HEAD_BYTES:
                raise _error()  # the parser ends, and uvicorn takes it for a head that is no HTTP

        def send_400_response(self, msg: str) -> None:
            if self._head > HEAD_BYTES:
                self._refuse()
            else:
                super().send_400_response(msg)

        def _refuse(self) -> None:
            self._refused = True
            client = self.client and self.client[0]
            event(log, "a request's head is too large", {"client": client, "limit": HEAD_BYTES})
            # Not into the middle of a reply that has begun, or before one to an earlier request.
            if self.cycle is None or self.cycle.response_complete:
                self.transport.write(_answer(self.server_state.default_headers))
            self.transport.close()

    return BoundedHeads


def _error() -> HeadTooLarge:
    return HeadTooLarge(f"the request's head has more than {HEAD_BYTES} bytes")


def _answer(headers: list[tuple[bytes, bytes]]) -> bytes:
    error = _error()
    body = json.dumps(envelope(error)).encode()
    lines = [
        b"HTTP/1.1 431 Request Header Fields Too Large",
        *(name + b": " + value for name, value in headers),
        b"content-type: application/json",
        b"content-length: %d" % len(body),
        *(f"{name}: {value}".encode() for name, value in error.headers.items()),
    ]
    return b"\r\n".join([*lines, b"", body])
