"""Connections that ask for nothing, or only half: thousands of them hold up nobody, nor the server's end."""

from __future__ import annotations

import resource
import signal
import socket
import time
from contextlib import ExitStack

import httpx
import psutil
import pytest

from app.process.open_files import allow_more
from tests.app.test_server import BODY, server

IDLE, HALF = 1_000, 50
SHELL = 256
"""Files that the server may open at first, fewer than connect here."""


def test_a_thousand_idle_connections() -> None:
    """More than the shell lets a process have; others are answered at once, a signal ends the server in seconds."""
    with server(grace=1, delay_s=0.001) as running, ExitStack() as stack:
        one = psutil.Process(running.process.pid)
        one.rlimit(psutil.RLIMIT_NOFILE, (SHELL, IDLE + HALF + SHELL))
        running.wait_for("/ready", 200)
        assert one.rlimit(psutil.RLIMIT_NOFILE)[0] == IDLE + HALF + SHELL
        address = httpx.URL(running.url)
        for number in range(IDLE + HALF):
            client = stack.enter_context(socket.create_connection((address.host, address.port), timeout=10))
            if number >= IDLE:
                client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConte")
        began = time.monotonic()
        assert httpx.get(running.url + "/health", timeout=5).status_code == 200
        assert time.monotonic() - began < 1
        with httpx.stream("POST", running.url + "/v1/completions", json=BODY, timeout=10) as reply:
            assert "".join(reply.iter_text()).endswith("data: [DONE]\n\n")
        began = time.monotonic()
        running.signal()
        assert running.end(20) in (0, -signal.SIGTERM)
        assert time.monotonic() - began < 5
        assert "Too many open files" not in running.log


@pytest.mark.parametrize(
    ("limits", "soft"),
    [((256, 1024), 1024), ((256, 10**6), 65_536), ((10**5, 10**6), 10**5), ((256, -1), 65_536)],
)
def test_the_limit(limits: tuple[int, int], soft: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raised to what is allowed, never lowered; what the system refuses leaves it as it is."""
    now = [limits]
    monkeypatch.setattr(resource, "getrlimit", lambda which: now[0])
    monkeypatch.setattr(resource, "setrlimit", lambda which, both: now.__setitem__(0, both))
    allow_more()
    assert now[0] == (soft, limits[1])

    def refuse(which: int, both: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    now[0] = limits
    allow_more()
    assert now[0] == limits
