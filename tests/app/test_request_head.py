"""Heads above the bound are refused with 431 before they are whole; all others, and all bodies, pass as ever."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.request_head import HEAD_BYTES, bounded
from tests.app.conftest import build
from tests.app.fake_engine import FakeEngine
from tests.app.log_lines import logged
from tests.app.web_server import WebServer

HEAD = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n"
PART = b"a" * 16_384


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with WebServer(build(FakeEngine()), http="httptools") as found:
        yield found


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    address = httpx.URL(url)
    with socket.create_connection((address.host, address.port or 0), timeout=30) as client:
        yield client


def answer(client: socket.socket) -> bytes:
    """All up to the end of the connection, which is a reset where the server has left something unread."""
    found = b""
    with suppress(ConnectionResetError):
        while part := client.recv(65_536):
            found += part
    return found


def ends(client: socket.socket) -> bool:
    """Whether the server ends the connection while the client sends on and on, 32 MiB at most: far more than the
    sockets' buffers hold.
    """
    for _ in range(2000):
        try:
            client.sendall(PART)
        except OSError:
            return True
    return False


def refused(client: socket.socket) -> None:
    """In the form of all errors, and the connection ends."""
    head, _, body = answer(client).partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    assert lines[0] == b"http/1.1 431 request header fields too large"
    assert b"connection: close" in lines and b"content-type: application/json" in lines
    assert any(line.startswith(b"date: ") for line in lines)
    assert b"content-length: %d" % len(body) in lines
    error = json.loads(body)["error"]
    assert (error["code"], error["type"]) == (431, "RequestHeaderFieldsTooLargeError")
    assert str(HEAD_BYTES) in error["message"] and error["param"] is None


def headers(size: int) -> bytes:
    """Whole headers that count for `size` bytes together, each of at most 1 KiB."""
    found = b""
    while len(found) < size:
        found += b"X-A: %b\r\n" % (b"a" * (min(1024, size - len(found)) - len(b"X-A: \r\n")))
    assert len(found) == size
    return found


COUNTED = len(b"/v1/models" + b"Host: x\r\n" + b"Connection: close\r\n")
"""Of the head in the test below, beside what it adds."""


@pytest.mark.parametrize(("size", "status"), [(HEAD_BYTES - COUNTED, 200), (HEAD_BYTES - COUNTED + 1, 431)])
def test_the_bound(url: str, size: int, status: int) -> None:
    """To the byte, of a head that is whole. Where that ends in the one after another, the next one counts from 0."""
    with connected(url) as client:
        client.sendall(HEAD + b"Connection: close\r\n" + headers(size) + b"\r\n")
        assert answer(client).startswith(b"HTTP/1.1 %d " % status)
    with httpx.Client(base_url=url) as one:
        for _ in range(3):
            assert one.get("/v1/models", headers={"X-A": "a" * (HEAD_BYTES // 2)}).status_code == 200


@pytest.mark.parametrize(
    "beginning",
    [
        HEAD + b"X-A: ",
        HEAD + b"X-",
        b"GET /",
        b"G",
        HEAD + b"X-A: b\r\n" * 100 + b"X-A: ",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\nX-A: ",
    ],
    ids=["value", "name", "path", "method", "many headers", "post"],
)
def test_a_head_that_does_not_end(url: str, beginning: bytes) -> None:
    """It is refused as soon as it is larger, or no HTTP: the client sends no more than the server has room for."""
    with connected(url) as client:
        client.sendall(beginning)
        assert ends(client)


def test_a_head_in_small_parts(url: str) -> None:
    """The answer reaches a client that does not send on and on."""
    with connected(url) as client, logged() as told:
        client.sendall(HEAD + b"X-A: ")
        client.setblocking(False)
        sent = 0
        # Until there is an answer: how much the server reads at a time is the system's.
        while not readable(client):
            sent += client.send(b"a" * 512)
            time.sleep(0.0005)
            assert sent < 4 * HEAD_BYTES
        client.setblocking(True)
        assert sent > HEAD_BYTES // 2
        refused(client)
    (line,) = [found for line in told.json if "head" in (found := json.loads(line))["message"]]
    assert line["client"] == "127.0.0.1" and line["limit"] == HEAD_BYTES


def readable(client: socket.socket) -> bool:
    try:
        return bool(client.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


def test_trailers_are_bounded_too(url: str) -> None:
    """What stands behind a chunked body; there is a request already, so that the connection just ends."""
    head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connected(url) as client:
        client.sendall(head + b"0\r\nX-A: ")
        assert ends(client)


def test_bodies_are_not_heads(url: str) -> None:
    """In one piece and in chunks, each with a head near the bound."""
    text = json.dumps({"prompt": "a" * 3 * HEAD_BYTES}).encode()
    fields = {"Content-Type": "application/json", "X-A": "a" * (HEAD_BYTES - 2000)}
    with httpx.Client(base_url=url, headers=fields, timeout=30) as client:
        whole = client.post("/v1/completions", content=text)
        parts: Callable[[], Iterator[bytes]] = lambda: (text[at : at + 10] for at in range(0, len(text), 10))  # noqa: E731
        chunked = client.post("/v1/completions", content=parts())
    # The prompt is too long for the fake engine: it was read to its end.
    assert whole.status_code == chunked.status_code == 400 and whole.json() == chunked.json()
    assert "prompt" in whole.json()["error"]["param"]


def test_other_faults_are_told_as_ever(url: str) -> None:
    with connected(url) as client:
        client.sendall(b"\x00\x01\r\n\r\n")
        assert answer(client).startswith(b"HTTP/1.1 400 ")


def test_the_bound_of_h11() -> None:
    """It has its own, so that uvicorn's protocol stays."""
    with WebServer(build(FakeEngine()), http="h11") as url, connected(url) as client:
        client.sendall(HEAD + b"X-A: ")
        assert ends(client)


@pytest.mark.parametrize(("http", "protocol"), [("auto", HttpToolsProtocol), ("h11", H11Protocol)])
def test_what_uvicorn_runs(http: Any, protocol: type) -> None:
    """What the subclass stands on; where this fails, uvicorn has changed, and so must `app.request_head`."""
    config = uvicorn.Config("app:main", http=http, log_config=None)
    assert isinstance(config, uvicorn.Config) and "http_protocol_class" not in vars(config)
    config.app = lambda: None
    config.load()
    assert config.http_protocol_class is protocol
    if http == "auto":
        subclass = bounded(protocol)
        assert issubclass(subclass, protocol) and bounded(protocol) is subclass
        overridden = [name for name in vars(subclass) if not name.startswith("_")]
        assert "data_received" in overridden and "send_400_response" in overridden
        assert not [name for name in overridden if not callable(getattr(protocol, name, None))]
        own = vars(protocol(config, uvicorn.server.ServerState(), {}))
        assert {"transport", "client", "cycle", "server_state", "parser"} <= set(own)
        assert not {"_head", "_unclaimed", "_refused", "_count", "_refuse"} & {*own, *dir(protocol)}
