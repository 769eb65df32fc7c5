"""The real gateway, `uvicorn app:main` with vLLM on the CPU, in a process of its own.

A start costs 15 to 50 s, so tests share one process a configuration (session fixtures); everything that a
fake engine can show is tested in `tests/app` instead.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from plugin.engine_process import METHOD

START_S = 240.0


class GatewayProcess:
    """A running server. `client` speaks to it, `log()` is what it has written so far."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self.process, self.url, self._log = process, url, log
        self.client = httpx.Client(base_url=url, timeout=120)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def processes(self) -> list[psutil.Process]:
        """All that it consists of, whoever their parents are by now: those of its session that still run."""
        found = []
        for process in psutil.process_iter():
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getsid(process.pid) == self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def core(self) -> psutil.Process:
        """The process that runs the model."""
        return next(process for process in self.processes() if "EngineCore" in " ".join(process.cmdline()))

    def wait(self) -> None:
        """Until ready; AssertionError with the log's end when the process ends or takes too long."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log()[-4000:]
            try:
                if self.client.get("/ready").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        raise AssertionError(f"not ready after {START_S} s\n{self.log()[-4000:]}")

    def complete(self, prompt: Any, **fields: Any) -> httpx.Response:
        """`POST /v1/completions`, greedy unless told otherwise."""
        return self.client.post("/v1/completions", json={"prompt": prompt, "temperature": 0, **fields})

    def text(self, prompt: Any, **fields: Any) -> str:
        """The text of the first choice."""
        reply = self.complete(prompt, **fields)
        assert reply.status_code == 200, reply.text
        text: str = reply.json()["choices"][0]["text"]
        return text

    def metric(self, name: str) -> float:
        """The sum over the samples of one series of /metrics."""
        lines = self.client.get("/metrics").text.splitlines()
        found = [
            float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name}{{", f"{name} "))
        ]
        assert found, f"/metrics has no {name}"
        return sum(found)


@contextmanager
def gateway(
    environment: Mapping[str, str] | None = None,
    within: Sequence[str] = (),
    waits: bool = True,
    out: str | None = None,
    **settings: Any,
) -> Iterator[GatewayProcess]:
    """A gateway; `settings` become T5GEMMA_* variables (`model=...`, `k=3`), `environment` is added as it is. It is
    ready, unless nobody `waits`. `within` is a command that ends by becoming the one behind it. What it writes is its
    log, unless that goes `out` to another file. It has a session of its own, as in a terminal.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {f"T5GEMMA_{name.upper()}": str(value) for name, value in settings.items()}
    # Not the start method that the other tests choose (tests/engine/conftest.py): a user has none.
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("T5GEMMA_") and name != METHOD
    }
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        log.touch()
        with open(out or log, "wb") as written:
            process = subprocess.Popen(
                [*within, sys.executable, "-m", "uvicorn", "app:main", "--port", str(port)],
                env={**clean, "OMP_NUM_THREADS": "1", **variables, **(environment or {})},
                stdout=written,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        running = GatewayProcess(process, f"http://127.0.0.1:{port}", log)
        try:
            if waits:
                running.wait()
            yield running
        finally:
            running.client.close()
            process.terminate()
            try:
                process.wait(60)
            finally:
                process.kill()
                process.wait()
                for left in running.processes():
                    with suppress(psutil.NoSuchProcess):
                        left.kill()
