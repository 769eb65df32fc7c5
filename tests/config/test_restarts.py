"""Two gateways are restarted one after the other behind both proxies, under load: no request is lost."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from app.bench.servers import free_port
from tests.app.test_server import Server, server
from tests.config.load import Load
from tests.config.proxies import FILES, missing, proxy

FAKE = {"delay_s": 0.005, "load_s": 0.5}
ABSENT = [why for name in FILES if (why := missing(name)) is not None]


def wait_until_up(admin: Path) -> None:
    """Until HAProxy itself says that both gateways are up: it asks once a second."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with socket.socket(socket.AF_UNIX) as client, client.makefile() as told:
            client.connect(str(admin))
            client.sendall(b"show stat\n")
            rows = [line.split(",") for line in told if line.startswith("gateways,")]
        if [row[17] for row in rows] == ["UP"] * 3:  # first, second, and the backend as a whole
            return
        time.sleep(0.1)
    raise AssertionError(rows)


@pytest.mark.skipif(bool(ABSENT), reason=", ".join(ABSENT))
def test_restarts(tmp_path: Path) -> None:
    """What a gateway has begun it ends; what comes while it drains, restarts or loads is the other one's."""
    ports, admin = [free_port() for _ in range(2)], tmp_path / "admin"
    with ExitStack() as stack:

        def start(port: int) -> Server:
            return stack.enter_context(server(grace=30, port=port, **FAKE))

        def front(name: str, changes: dict[str, str] | None = None) -> str:
            gateways = [f"127.0.0.1:{port}" for port in ports]
            return stack.enter_context(proxy(name, tmp_path / name, gateways, changes))

        running = [start(port) for port in ports]
        for one in running:
            one.wait_for("/ready", 200)
        urls = [front("nginx"), front("haproxy", {"global\n": f"global\n    stats socket {admin}\n"})]
        with Load(urls[0], pause_s=0.1) as first, Load(urls[1], pause_s=0.1) as second:
            for one, port in zip(running, ports, strict=True):
                wait_until_up(admin)
                one.signal()
                one.end()
                start(port).wait_for("/ready", 200)
    for load in (first, second):
        assert not load.failures and len(load.outcomes) > 50
