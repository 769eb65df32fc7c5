"""uvicorn's flags and variables that cannot be served: refused before anything is loaded (N15)."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from uvicorn.config import LOG_LEVELS

from app import cli
from app.process.uvicorn_command import check_address, workers
from tests.app.test_main import environment, uvicorn

T5GEMMA2 = "import runpy; runpy.run_module('app.cli', run_name='__main__')"
"""What the `t5gemma2` script does."""


def t5gemma2(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", T5GEMMA2, "serve", *words]
    return subprocess.run(command, env=environment(**variables), capture_output=True, text=True, timeout=60)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of 127.0.0.1 on which someone listens who would share it (SO_REUSEPORT)."""
    with closing(socket.create_server(("127.0.0.1", 0), reuse_port=True)) as other:
        yield other.getsockname()[1]


def one_line(ended: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert ended.returncode == code, ended.stderr
    last = ended.stderr.strip().splitlines()[-1]
    assert all(word in last for word in words), last
    assert "Traceback" not in ended.stderr and "import: vLLM" not in ended.stderr


@pytest.mark.parametrize("port", ["70000", "-1", "65536"])
def test_port_out_of_range(tmp_path: Path, port: str) -> None:
    """uvloop would take it modulo 65536: 70000 listened on 4464."""
    one_line(uvicorn(tmp_path, f"--port={port}"), 2, f"--port {port}", "65535")
    one_line(t5gemma2(f"--port={port}"), 2, f"--port {port}", "65535")
    one_line(uvicorn(tmp_path, UVICORN_PORT=port, flags=""), 2, f"--port {port}")


def test_unknown_log_level(tmp_path: Path) -> None:
    one_line(t5gemma2("--log-level", "bogus"), 2, "--log-level", "'bogus'", "'info'")
    assert uvicorn(tmp_path, "--log-level", "bogus").returncode == 2
    assert set(cli.LOG_LEVELS) == set(LOG_LEVELS)


@pytest.mark.parametrize("words", [("--workers", "2"), ("--workers=3",)])
def test_workers_are_refused_with_a_code(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Two workers would be two engines on one device; the supervisor says so and ends, with 2 instead of 0."""
    refused(uvicorn(tmp_path, *words))


@pytest.mark.parametrize("name", ["WEB_CONCURRENCY", "UVICORN_WORKERS"])
def test_workers_of_the_environment(tmp_path: Path, name: str) -> None:
    refused(uvicorn(tmp_path, **{name: "2"}))


def refused(ended: subprocess.CompletedProcess[str]) -> None:
    assert ended.returncode == 2, ended.stderr
    assert "more than one uvicorn worker" in ended.stderr and "T5GEMMA_DATA_PARALLEL_SIZE" in ended.stderr
    assert "Application startup complete" not in ended.stderr


@pytest.mark.parametrize(
    ("argv", "concurrency", "asked"),
    [
        (["uvicorn", "app:main"], None, 1),
        (["uvicorn", "app:main", "--workers", "2"], None, 2),
        (["uvicorn", "app:main", "--workers=3"], None, 3),
        (["uvicorn", "--workers", "1", "app:main"], "4", 1),
        (["uvicorn", "app:main"], "4", 4),
        (["uvicorn", "app:main", "--workers"], None, 1),
    ],
)
@pytest.mark.parametrize("name", ["WEB_CONCURRENCY", "UVICORN_WORKERS"])
def test_workers_asked_for(
    argv: list[str], concurrency: str | None, asked: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for other in ("WEB_CONCURRENCY", "UVICORN_WORKERS"):
        monkeypatch.delenv(other, raising=False)
    if concurrency is not None:
        monkeypatch.setenv(name, concurrency)
    assert workers(argv) == asked


def test_taken_port(tmp_path: Path, taken: int) -> None:
    """Found before anything is loaded, also where the other server would share its port."""
    words = ("127.0.0.1", str(taken), "already in use")
    one_line(uvicorn(tmp_path, "--port", str(taken)), 1, *words)
    one_line(uvicorn(tmp_path, UVICORN_PORT=str(taken), flags=""), 1, *words)
    one_line(t5gemma2("--port", str(taken)), 1, *words)


@pytest.mark.parametrize(
    ("host", "words"),
    [("[::1]", "without brackets"), ("192.0.2.1", "assign requested address"), ("no.such.host.invalid", "")],
)
def test_host_that_cannot_be(tmp_path: Path, host: str, words: str) -> None:
    one_line(uvicorn(tmp_path, "--host", host), 1, f"host {host}", words)
    one_line(t5gemma2("--host", host, "--port", "0"), 1, f"host {host}", words)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost", "::1", "::", ""])
def test_hosts_that_can(host: str) -> None:
    """IPv6 too, where the machine has it; nothing stays bound, not even for the very next server."""
    if ":" in host and not _has_ipv6():
        pytest.skip("no IPv6 here")
    check_address(host, 0)
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for _ in range(2):
        check_address(host, port)


def _has_ipv6() -> bool:
    try:
        with closing(socket.socket(socket.AF_INET6)) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_a_supervisor_that_reloads_is_left_alone(tmp_path: Path) -> None:
    """It has bound the port itself, before its one worker imports the application."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "app:main", "--reload", "--port", str(port)]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(T5GEMMA_MODEL="/no/such/folder"),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        seen = ""
        while "t5gemma2: " not in seen:
            line = process.stderr.readline()
            assert line, seen
            seen += line
        assert "/no/such/folder" in seen and "cannot listen" not in seen
    finally:
        for one in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
            one.send_signal(signal.SIGKILL)
        process.communicate(timeout=10)
