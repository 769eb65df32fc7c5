"""The end of this package's server; pytest runs the files by name, so this one is its last."""

from __future__ import annotations

import httpx
import psutil
import pytest

from tests.engine.gateway.process import GatewayProcess
from tests.engine.gateway.requests import PROMPT

pytestmark = pytest.mark.engine


def test_engine_dies(server: GatewayProcess) -> None:
    """The last test of this server: its engine is killed under a running stream, which is told; the process ends with
    an error and leaves no other behind.
    """
    children = psutil.Process(server.process.pid).children(recursive=True)
    core = next(child for child in children if "EngineCore" in " ".join(child.cmdline()))
    body = {"prompt": PROMPT, "max_tokens": 250, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=30) as reply:
        parts = reply.iter_text()
        next(parts)
        core.kill()
        text = "".join(parts)
    assert '"code": 503' in text and text.endswith("data: [DONE]\n\n")
    assert server.process.wait(30) == 1
    _, left = psutil.wait_procs(children, timeout=10)
    assert not left
    assert "the engine died" in server.log()
