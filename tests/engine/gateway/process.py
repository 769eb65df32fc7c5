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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

START_S = 240.0


class GatewayProcess:
    """A running server. `client` speaks to it, `log()` is what it has written so far."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self.process, self.url, self._log = process, url, log
        self.client = httpx.Client(base_url=url, timeout=120)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

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
def gateway(environment: Mapping[str, str] | None = None, **settings: Any) -> Iterator[GatewayProcess]:
    """A ready gateway; `settings` become T5GEMMA_* variables (`model=...`, `k=3`), `environment` is added as it is."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {f"T5GEMMA_{name.upper()}": str(value) for name, value in settings.items()}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("T5GEMMA_")}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "uvicorn", "app:main", "--port", str(port)],
                env={**clean, "OMP_NUM_THREADS": "1", **variables, **(environment or {})},
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        running = GatewayProcess(process, f"http://127.0.0.1:{port}", log)
        try:
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
