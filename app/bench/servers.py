"""Servers that a benchmark starts itself: up when they answer /ready, gone when the arm is measured."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx

from app.bench.arms import Arm, absolute
from app.bench.errors import BenchError
from app.bench.machine import package_environment
from app.settings import PREFIX

APPLICATION = "app:main"
_POLL_S = 0.2
_STOP_S = 45.0
_LOG_LINES = 12
_PATHS = ("CHECKPOINTS_DIR",)


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def serving(arm: Arm, concurrency: int, log: Path, start_timeout_s: float) -> AsyncIterator[str]:
    """The address of the arm's server: given, or of one started on a free port of this machine and stopped
    afterwards, whatever happens.

    Args:
        arm: what to serve.
        concurrency: the most requests at once; the batch is made as large unless T5GEMMA_MAX_NUM_SEQS is set.
        log: where the started server writes.
        start_timeout_s: seconds until it must be ready.

    Raises:
        BenchError: it ended or was not ready in time; the message has the end of its log.
    """
    if arm.url is not None:
        yield arm.url
        return
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", APPLICATION, "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as file:
        # Its own folder keeps a .env of this one from changing the arm; its own session lets its children
        # be ended with it, and leaves Ctrl-C to us.
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=log.parent,
            env=environment(arm, concurrency),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=file,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        await _ready(process, url, arm, log, start_timeout_s)
        yield url
    finally:
        await _stop(process)


def environment(arm: Arm, concurrency: int) -> dict[str, str]:
    """The started server's environment: this process's, with the arm's settings in place of its own."""
    variables = package_environment()
    for name in _PATHS:
        if place := variables.get(PREFIX + name):
            variables[PREFIX + name] = absolute(place)
    if not variables.get(f"{PREFIX}MAX_NUM_SEQS"):
        variables[f"{PREFIX}MAX_NUM_SEQS"] = str(concurrency)
    own = {"SERVED_MODEL_NAME": "", "API_KEYS": "", "ROOT_PATH": "", **dict(arm.settings)}
    return {**variables, **{PREFIX + name: value for name, value in own.items()}}


async def _ready(
    process: asyncio.subprocess.Process, url: str, arm: Arm, log: Path, start_timeout_s: float
) -> None:
    clock = asyncio.get_running_loop().time
    deadline = clock() + start_timeout_s
    async with httpx.AsyncClient(base_url=url, timeout=10, trust_env=False) as client:
        while True:
            if process.returncode is not None:
                raise BenchError(
                    f"arm {arm.name}: its server ended with {process.returncode}: {_end_of(log)}"
                )
            if clock() > deadline:
                raise BenchError(
                    f"arm {arm.name}: not ready after {start_timeout_s:g} s (--start-timeout): {_end_of(log)}"
                )
            with suppress(httpx.TransportError):
                if (await client.get("/ready")).status_code == httpx.codes.OK:
                    return
            await asyncio.sleep(_POLL_S)


async def _stop(process: asyncio.subprocess.Process) -> None:
    """SIGTERM and, after the server's own grace, SIGKILL; then whatever it left in its process group."""
    try:
        if process.returncode is None:
            process.terminate()
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _STOP_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _end_of(log: Path) -> str:
    """The last lines of a log, on one line."""
    with log.open(encoding="utf-8", errors="replace") as file:
        return " | ".join(line.strip() for line in deque(file, _LOG_LINES) if line.strip()) or "empty log"
