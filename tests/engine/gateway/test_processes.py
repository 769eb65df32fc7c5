"""Which processes a server on the CPU is."""

from __future__ import annotations

import psutil
import pytest

from tests.engine.gateway.process import GatewayProcess

pytestmark = pytest.mark.engine


def test_one_engine_process_and_no_worker(server: GatewayProcess) -> None:
    """`app.process.cpu_process`: vLLM's CPU platform lets the model run within the engine's process."""
    children = psutil.Process(server.process.pid).children(recursive=True)
    lines = [" ".join(child.cmdline()) for child in children]
    engines = [child for child, line in zip(children, lines, strict=True) if "EngineCore" in line]
    assert len(engines) == 1 and not any("Worker" in line for line in lines), lines
    assert any("libiomp5.so" in mapped.path for mapped in engines[0].memory_maps())
