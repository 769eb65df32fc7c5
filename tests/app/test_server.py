"""The whole server in a process of its own, over a fake engine: signals, exit codes, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import psutil
import pytest

from plugin.engine_process import METHOD
from tests.pipes import fill

BODY = {"prompt": "Hi", "max_tokens": 400, "stream": True}


class Server:
    """A running `uvicorn`; `log` is what it has written once it ended."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.url = process, f"http://127.0.0.1:{port}"
        self.log = ""

    def wait_for(self, path: str, status: int, seconds: float = 40) -> None:
        """Until `path` answers with `status`."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if httpx.get(self.url + path, timeout=1).status_code == status:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.02)
        raise AssertionError(f"{path} did not answer {status}")

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def end(self, seconds: float = 40) -> int:
        """Waits for the end and gives the exit code."""
        self.log += self.process.communicate(timeout=seconds)[0] or ""
        return self.process.returncode


@contextmanager
def server(
    grace: float = 1, port: int | None = None, out: Any = subprocess.PIPE, **fake: Any
) -> Iterator[Server]:
    """A server, on a free port unless it is told one, which writes to `out`; killed if the test leaves it running."""
    if port is None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "tests.app.fake_server:app", "--port", str(port)],
        env={**os.environ, "FAKE": json.dumps(fake), "GRACE": str(grace)},
        stdout=out,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield Server(process, port)
    finally:
        if process.poll() is None:
            # A child left alive would hold the pipe open.
            for one in [*psutil.Process(process.pid).children(recursive=True), process]:
                one.kill()
            process.communicate()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def child_of(log: str) -> int:
    return int(next(line for line in log.splitlines() if line.startswith("child ")).split()[1])


@pytest.fixture
def without_nohup() -> Iterator[None]:
    """The tests themselves may run behind `nohup`, which a server would inherit."""
    former = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, former)


@pytest.mark.usefixtures("without_nohup")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_drains(number: int) -> None:
    """A stream that ends within the grace time ends by itself, no process is left (E10); so when a terminal closes."""
    with server(grace=30, delay_s=0.002, child=True) as running:
        running.wait_for("/ready", 200)
        with httpx.stream("POST", running.url + "/v1/completions", json=BODY, timeout=10) as reply:
            parts = reply.iter_text()
            next(parts)
            running.signal(number)
            text = "".join(parts)
        assert text.endswith("data: [DONE]\n\n") and '"finish_reason":"length"' in text
        expected = signal.SIGTERM if number == signal.SIGHUP else number
        assert running.end() in (0, -expected, 128 + expected)
        assert "draining" in running.log and not alive(child_of(running.log))


def test_nohup_is_heard() -> None:
    """A server that was started to outlive its terminal does."""
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with server() as running:
            signal.signal(signal.SIGHUP, former)
            running.wait_for("/ready", 200)
            running.signal(signal.SIGHUP)
            time.sleep(0.3)
            running.wait_for("/ready", 200)
            running.signal()
            assert running.end() in (0, -signal.SIGTERM)
    finally:
        signal.signal(signal.SIGHUP, former)


def test_grace_ends() -> None:
    """What does not end in time is ended with an error event and `[DONE]` (E10)."""
    with server(grace=0.3, delay_s=0.1) as running:
        running.wait_for("/ready", 200)
        with httpx.stream("POST", running.url + "/v1/completions", json=BODY, timeout=10) as reply:
            parts = reply.iter_text()
            next(parts)
            began = time.monotonic()
            running.signal()
            text = "".join(parts)
        assert text.endswith("data: [DONE]\n\n") and "shutting down" in text
        assert time.monotonic() - began < 10
        assert running.end() in (0, -signal.SIGTERM)


@pytest.mark.parametrize("where", ["full disk", "nobody reads"])
def test_a_log_that_takes_nothing(where: str) -> None:
    """Requests are served, and the end is as it should be."""
    reader, writer = os.pipe()
    with (
        open("/dev/full", "wb") as full,
        os.fdopen(writer, "wb") as pipe,
        server(out=full if where == "full disk" else pipe, delay_s=0.002) as running,
    ):
        running.wait_for("/ready", 200)
        os.close(reader)
        reply = httpx.post(running.url + "/v1/completions", json={**BODY, "max_tokens": 20}, timeout=10)
        assert reply.text.endswith("data: [DONE]\n\n")
        assert httpx.post(running.url + "/v1/completions", json={"prompt": ""}).status_code == 400
        running.signal()
        assert running.end() in (0, -signal.SIGTERM)


def test_a_log_that_is_never_read() -> None:
    """Its pipe is full before the server starts, and nobody waits for it: neither requests nor probes nor the end."""
    reader, writer = os.pipe()
    fill(writer)
    with os.fdopen(reader, "rb"), os.fdopen(writer, "wb") as pipe, server(out=pipe, delay_s=0.002) as running:
        running.wait_for("/ready", 200)
        with httpx.Client(base_url=running.url, timeout=10) as client:
            for number in range(300):  # their lines are more than another pipe holds
                assert client.get("/v1/models", headers={"X-Request-Id": f"{number:0250}"}).status_code == 200
            reply = client.post("/v1/completions", json={**BODY, "max_tokens": 20})
            assert reply.text.endswith("data: [DONE]\n\n")
            assert client.get("/health").status_code == 200
        began = time.monotonic()
        running.signal()
        assert running.end() in (0, -signal.SIGTERM)
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("fails", [True, False])
def test_the_end_of_an_engine_with_a_log_that_is_never_read(fails: bool) -> None:
    """Its code is an error's all the same."""
    reader, writer = os.pipe()
    fill(writer)
    fault: dict[str, Any] = {"fail_start": True} if fails else {"die_after_s": 0.5}
    with os.fdopen(reader, "rb"), os.fdopen(writer, "wb") as pipe, server(out=pipe, **fault) as running:
        assert running.end() == 1


def test_half_a_body_does_not_hold_the_server() -> None:
    """A client that stalls in its body is ended by the grace time too (E10)."""
    with server(grace=0.3) as running:
        running.wait_for("/ready", 200)
        address = httpx.URL(running.url)
        with socket.create_connection((address.host, address.port or 0), timeout=10) as stalled:
            head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
            stalled.sendall(f'{head}Content-Type: application/json\r\n\r\n{{"prompt"'.encode())
            time.sleep(0.3)
            running.signal()
            assert b" 503 " in stalled.recv(65536).splitlines()[0]
            assert running.end(10) in (0, -signal.SIGTERM)


def test_clients_that_do_not_read() -> None:
    """They are cut off some seconds after the grace time; the server never ended, not even after its engine's death."""
    length = 40_000  # more than the sockets' buffers hold
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length:"
    with (
        server(grace=0.1, length=length, max_model_len=length + 9, per_step=500) as running,
        ExitStack() as stack,
    ):
        running.wait_for("/ready", 200)
        address = httpx.URL(running.url)
        for stream in (False, True):
            body = json.dumps({"prompt": "Hi", "max_tokens": length, "stream": stream, "logprobs": 5})
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.connect((address.host, address.port))
            client.sendall(f"{head} {len(body)}\r\n\r\n{body}".encode())
            assert client.recv(1) == b"H"
        running.signal()
        assert running.end(20) in (0, -signal.SIGTERM)
        assert "Application shutdown complete" in running.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_second_signal_forces(number: int) -> None:
    """Running requests get no more of the grace time (E10). The engine is ended in good order all the same, also by the
    second Ctrl-C.
    """
    with server(grace=30, delay_s=0.1) as running:
        running.wait_for("/ready", 200)
        with httpx.stream("POST", running.url + "/v1/completions", json=BODY, timeout=10) as reply:
            parts = reply.iter_text()
            next(parts)
            running.signal(number)
            time.sleep(0.2)
            running.signal(number)
            assert "shutting down" in "".join(parts)
        assert running.end() in (0, -signal.SIGTERM)
        assert "Application shutdown complete" in running.log and "Traceback" not in running.log


def test_signal_while_loading() -> None:
    """The half-loaded engine's processes go too, and soon (E10)."""
    with server(load_s=60, child=True) as running:
        running.wait_for("/health", 200)
        running.wait_for("/ready", 503)
        running.signal()
        assert running.end(20) in (0, -signal.SIGTERM)
        assert not alive(child_of(running.log))


def test_failed_start_ends_the_process() -> None:
    """One line says why, and the exit code is an error's."""
    with server(fail_start=True) as running:
        assert running.end() == 1
        assert "the engine did not start: RuntimeError: no such weights\n" in running.log
        assert "Traceback" in running.log and "in start" in running.log


def test_failed_start_ends_the_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start may fail, for want of a file, long before the process that imports vLLM has done so."""
    monkeypatch.delenv(METHOD, raising=False)
    with server(load_s=3, fail_start=True, imports=True) as running:
        running.wait_for("/ready", 503)
        while not (children := psutil.Process(running.process.pid).children(recursive=True)):
            assert running.process.poll() is None
            time.sleep(0.01)
        assert running.process.wait(40) == 1
        _, left = psutil.wait_procs(children, timeout=20)
        assert not left
        running.end()


def test_dead_engine_ends_the_process() -> None:
    """A supervisor sees a failure; the running stream is told."""
    with server(delay_s=0.05, die_after_s=1.0, child=True) as running:
        running.wait_for("/ready", 200)
        with httpx.stream("POST", running.url + "/v1/completions", json=BODY, timeout=10) as reply:
            text = "".join(reply.iter_text())
        assert '"code":503' in text.replace(" ", "") and text.endswith("data: [DONE]\n\n")
        assert running.end() == 1
        assert "the engine died" in running.log and not alive(child_of(running.log))
