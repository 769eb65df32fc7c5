"""Servers that a benchmark starts itself: up before they are measured, gone afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx

from app.bench.arms import Arm, absolute
from app.bench.errors import BenchError, ServerLost
from app.config.settings import PREFIX
from plugin.package_environment import package_environment

APPLICATION = "app:main"
Result = TypeVar("Result")
_POLL_S = 0.2
_STOP_S = 45.0
_ENDING_S = 5.0
_LOG_LINES = 12


def run_to_end(work: Coroutine[Any, Any, Result]) -> Result:
    """asyncio.run, with SIGTERM as gentle as Ctrl-C: servers are stopped and what was measured is kept."""

    async def main() -> Result:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    return asyncio.run(main())


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def serving(
    arm: Arm, concurrency: int, log: Path, start_timeout_s: float, application: str | None = None
) -> AsyncIterator[str]:
    """The address of the arm's server: given, or of a gateway that is started and afterwards stopped.

    Args:
        arm: what to serve.
        concurrency: the most requests at once; the batch is made as large unless T5GEMMA_MAX_NUM_SEQS is set.
        log, start_timeout_s: as of `started`.
        application: what is started, as uvicorn names it; None: the gateway.

    Raises:
        BenchError: as `started`.
    """
    if arm.url is not None:
        yield arm.url
        return
    command, variables = ("-m", "uvicorn", application or APPLICATION), environment(arm, concurrency)
    async with started(f"arm {arm.name}", command, variables, "/ready", log, start_timeout_s) as url:
        yield url


@asynccontextmanager
async def started(
    name: str,
    command: Sequence[str],
    variables: Mapping[str, str],
    ready: str,
    log: Path,
    start_timeout_s: float,
) -> AsyncIterator[str]:
    """The address of a server on a free port of this machine, which is stopped afterwards, whatever happens.

    Args:
        name: what errors call it.
        command: Python's arguments; `--host` and `--port` follow.
        variables: its whole environment.
        ready: the path that answers 200 once it is up.
        log: where it writes, in the folder that it runs in.
        start_timeout_s: seconds until it must be up.

    Raises:
        BenchError: it was not up in time, or ended before it was stopped, which cancels what is done with it. The
            message has the end of its log.
    """
    port = free_port()
    with log.open("wb") as file:
        # Its own folder keeps a .env of this one from changing it; its own session lets its children be ended
        # with it, and leaves Ctrl-C to us.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *command, "--host", "127.0.0.1", "--port", str(port)),
            cwd=log.parent,
            env=variables,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=file,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        if failure := await _failure(process, url + ready, start_timeout_s):
            raise BenchError(f"{name}: {failure}: {_end_of(log)}")
        async with _cancelled_at_end(process) as ended:
            yield url
        if ended():
            raise BenchError(f"{name}: its server ended with {process.returncode}: {_end_of(log)}")
    finally:
        await _stop(process)


@asynccontextmanager
async def _cancelled_at_end(process: asyncio.subprocess.Process) -> AsyncIterator[Callable[[], bool]]:
    """Cancels what is done within when the process ends, as `asyncio.timeout` does when time is up; whether it did."""
    task, expired = asyncio.current_task(), False
    assert task is not None

    def cancel(_: object) -> None:
        nonlocal expired
        expired = True
        task.cancel()

    watch = asyncio.create_task(process.wait())
    watch.add_done_callback(cancel)
    try:
        yield lambda: expired
    except asyncio.CancelledError:
        if not expired or task.uncancel() > 0:
            raise
    except (ServerLost, httpx.TransportError):
        # Who talks to a server finds out before its process has ended that there is nobody.
        watch.remove_done_callback(cancel)
        await asyncio.wait([watch], timeout=_ENDING_S)
        expired = process.returncode is not None
        if not expired:
            raise
    finally:
        watch.remove_done_callback(cancel)
        watch.cancel()


def environment(arm: Arm, concurrency: int) -> dict[str, str]:
    """The started server's environment: this process's, with the arm's settings in place of its own."""
    variables = package_environment()
    if folder := variables.get(f"{PREFIX}CHECKPOINTS_DIR"):
        variables[f"{PREFIX}CHECKPOINTS_DIR"] = absolute(folder)
    if not variables.get(f"{PREFIX}MAX_NUM_SEQS"):
        variables[f"{PREFIX}MAX_NUM_SEQS"] = str(concurrency)
    cache = f"{PREFIX}ENCODER_CACHE_BYTES"  # off unless asked for: a repeated prompt would measure the cache
    variables[cache] = variables.get(cache) or "0"
    own = {
        "SERVED_MODEL_NAME": "",
        "API_KEYS": "",
        "ROOT_PATH": "",
        "ALLOW_SWITCH": "true",
        **dict(arm.settings),
    }
    return {**variables, **{PREFIX + name: value for name, value in own.items()}}


async def _failure(process: asyncio.subprocess.Process, url: str, start_timeout_s: float) -> str | None:
    """Waits until `url` answers 200; what keeps it from that, if something does."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + start_timeout_s
    async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
        while process.returncode is None:
            if clock() > deadline:
                return f"not ready after {start_timeout_s:g} s (--start-timeout)"
            with suppress(httpx.TransportError):
                if (await client.get(url)).status_code == httpx.codes.OK:
                    return None
            await asyncio.sleep(_POLL_S)
    return f"its server ended with {process.returncode}"


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
