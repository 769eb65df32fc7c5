"""What a client sees through nginx and HAProxy with the shipped configurations, before a gateway over a fake engine."""

from __future__ import annotations

import asyncio
import inspect
import random
import re
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import uvicorn

from app.bench.servers import free_port
from app.config.settings import Settings
from tests.app.conftest import build
from tests.app.fake_engine import FakeEngine, tokens
from tests.app.web_server import WebServer
from tests.config.proxies import FILES, missing, proxy

PREFIX = "/t5gemma"
PROXIES = [
    pytest.param(name, marks=pytest.mark.skipif(missing(name) is not None, reason=str(missing(name))))
    for name in FILES
]


@dataclass
class Front:
    """A proxy's address, and the engine of the one gateway that lives behind it."""

    url: str
    engine: FakeEngine

    def until_idle(self) -> None:
        """Until no request runs, five seconds at most: a quarter of what the request would take."""
        deadline = time.monotonic() + 5
        while self.engine.running and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not self.engine.running


def engine() -> FakeEngine:
    return FakeEngine(script=lambda request, sample: tokens("x" * 400))


@pytest.fixture(scope="module", params=PROXIES)
def front(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """One of the two addresses behind the proxy is nobody's, as while a gateway restarts."""
    fake, folder = engine(), tmp_path_factory.mktemp(request.param)
    with (
        WebServer(build(fake, root_path=PREFIX)) as gateway,
        proxy(request.param, folder, [gateway.removeprefix("http://"), f"127.0.0.1:{free_port()}"]) as url,
    ):
        yield Front(url, fake)


def test_streams_are_not_held_back(front: Front) -> None:
    """An event is with the client before the engine makes the next. HAProxy's own way holds them for up to 200 ms."""
    front.engine.delay_s, front.engine.step_times = 0.05, []
    body = {"prompt": "Hi", "max_tokens": 20, "stream": True}
    with httpx.stream("POST", front.url + "/v1/completions", json=body) as reply:
        assert reply.status_code == 200
        arrived = [time.monotonic() for line in reply.iter_lines() if line.startswith("data: {")]
    made = front.engine.step_times
    assert len(arrived) == len(made) == 20
    assert statistics.median(there - here for there, here in zip(arrived, made, strict=True)) < 0.05


def test_prefix(front: Front) -> None:
    """The API stands at the root and below the prefix, and its document names the prefix."""
    front.engine.delay_s = 0
    for prefix in ("", PREFIX):
        assert httpx.get(f"{front.url}{prefix}/v1/models").status_code == 200
        reply = httpx.post(f"{front.url}{prefix}/v1/completions", json={"prompt": "Hi", "max_tokens": 3})
        assert reply.json()["choices"][0]["text"] == "xxx"
        assert httpx.get(f"{front.url}{prefix}/docs").status_code == 200
        assert httpx.get(f"{front.url}{prefix}/metrics").status_code == 404
    assert httpx.get(f"{front.url}{PREFIX}/openapi.json").json()["servers"] == [{"url": PREFIX}]


def test_headers_pass(front: Front) -> None:
    reply = httpx.get(front.url + "/v1/models", headers={"X-Request-Id": "mine-1"})
    assert reply.headers["x-request-id"] == "mine-1"


@pytest.mark.parametrize("stream", [True, False])
def test_clients_that_leave_end_their_requests(front: Front, stream: bool) -> None:
    """In the engine, too, and soon. Ten: with `abortonclose` in the backend alone HAProxy tells of every other one."""
    front.engine.delay_s = 0.05
    front.engine.aborted.clear()
    body = {"prompt": "Hi", "max_tokens": 400, "stream": stream}

    def leave() -> None:
        if stream:
            with httpx.stream("POST", front.url + "/v1/completions", json=body) as reply:
                next(reply.iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(front.url + "/v1/completions", json=body, timeout=httpx.Timeout(20, read=2))

    with ThreadPoolExecutor(10) as clients:
        for left in [clients.submit(leave) for _ in range(10)]:
            left.result()
    front.until_idle()
    assert len(front.engine.aborted) == 10


def test_large_bodies(front: Front) -> None:
    """The gateway's limit is the proxy's, and so is the shape of the refusal."""
    limit = Settings.model_fields["max_body_bytes"].default
    for size, status in ((limit // 2, 400), (limit + 1000, 413)):
        reply = httpx.post(front.url + "/v1/completions", json={"prompt": "x" * size}, timeout=30)
        assert (reply.status_code, reply.json()["error"]["code"]) == (status, status)


@pytest.mark.parametrize("name", PROXIES)
def test_nobody_there(name: str, tmp_path: Path) -> None:
    """503 with `Retry-After`, in the envelope of all errors."""
    with proxy(name, tmp_path, [f"127.0.0.1:{free_port()}" for _ in range(2)]) as url:
        reply = httpx.post(url + "/v1/completions", json={"prompt": "Hi"})
        assert reply.status_code == 503 and int(reply.headers["retry-after"]) > 0
        assert reply.json()["error"] == {
            "message": "no gateway answers",
            "type": "ServiceUnavailableError",
            "param": None,
            "code": 503,
        }


FASTER = 20
"""Idle times are so many times shorter in the test below."""


@pytest.mark.parametrize("name", PROXIES)
def test_kept_connections(name: str, tmp_path: Path) -> None:
    """2000 requests with pauses about as long as uvicorn keeps an idle connection: each is answered."""
    idle_s = inspect.signature(uvicorn.Config).parameters["timeout_keep_alive"].default
    changes = {}
    if name == "nginx":  # HAProxy keeps none of the gateway's
        (found,) = re.findall(r"keepalive_timeout (\d+)s", FILES[name].read_text())
        assert int(found) < idle_s
        changes = {f"keepalive_timeout {found}s": f"keepalive_timeout {1000 * int(found) // FASTER}ms"}

    async def ask(address: httpx.URL, chance: random.Random) -> list[bytes]:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        body = b'{"prompt": "Hi", "max_tokens": 1}'
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length:"
        replies = []
        for _ in range(20):
            writer.write(f"{head} {len(body)}\r\n\r\n".encode() + body)
            told = await reader.readuntil(b"\r\n\r\n")
            replies.append(told.splitlines()[0])
            (length,) = re.findall(rb"(?i)content-length: *(\d+)", told)
            await reader.readexactly(int(length))
            await asyncio.sleep(chance.uniform(0, 1.2) * idle_s / FASTER)
        writer.close()
        return replies

    async def everyone(url: str) -> list[bytes]:
        each = await asyncio.gather(*(ask(httpx.URL(url), random.Random(i)) for i in range(100)))
        return [reply for replies in each for reply in replies]

    server = WebServer(build(engine(), max_queued_requests=1000), timeout_keep_alive=idle_s / FASTER)
    with server as gateway, proxy(name, tmp_path, [gateway.removeprefix("http://")] * 2, changes) as url:
        replies = asyncio.run(everyone(url))
    assert replies == [b"HTTP/1.1 200 OK"] * 2000


@pytest.mark.parametrize("name", FILES)
def test_times_and_sizes_leave_the_gateway_the_last_word(name: str) -> None:
    text, default = FILES[name].read_text(), {k: v.default for k, v in Settings.model_fields.items()}
    reads = {"nginx": r"proxy_read_timeout (\d+)s", "haproxy": r"timeout (?:server|client) (\d+)s"}[name]
    assert all(int(seconds) > default["request_timeout_s"] for seconds in re.findall(reads, text))
    for megabytes in re.findall(r"client_max_body_size (\d+)m", text):
        assert int(megabytes) * 2**20 == default["max_body_bytes"]
    for size in re.findall(r"req.body_size gt (\d+)", text):
        assert int(size) == default["max_body_bytes"]
