"""Ray replicas are ready when they say so, are replaced when their engine dies, and have metrics each (N28)."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import socket
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import httpx
import pytest

import app
from app.engine import EnginePlan
from tests.app.conftest import build, ready
from tests.app.fake_engine import FakeEngine

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="Ray is not installed (`pip install .[ray]`)")
def test_two_replicas() -> None:
    """`serve.run` returns when both serve, each has its own metrics, and both are replaced after their engines died."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.ray_replicas"]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180)
    assert ended.returncode == 0, ended.stderr[-4000:]
    seen = json.loads(ended.stdout.splitlines()[-1])
    assert seen["run_s"] >= 4 and list(seen["first"].values()) == [1, 1], seen
    assert list(seen["second"].values()) == [1, 1], seen


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`config/ray/serve_app.py` beside a Ray that only has the two decorators, over the application `app.main`."""

    class Deployment:
        def __init__(self, kind: Any) -> None:
            self.kind = kind

        def bind(self) -> None:
            pass

    ray = types.ModuleType("ray")
    serve = types.ModuleType("ray.serve")
    serve.deployment = lambda **options: Deployment  # type: ignore[attr-defined]
    serve.ingress = lambda builder: lambda kind: kind  # type: ignore[attr-defined]
    ray.serve = serve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.serve", serve)
    spec = importlib.util.spec_from_file_location("serve_app", ROOT / "config/ray/serve_app.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "FIRST_PORT", 19400)
    monkeypatch.setitem(vars(app), "main", build(FakeEngine()))
    return module


@pytest.mark.anyio
async def test_it_waits_for_its_engine(example: Any) -> None:
    """The first health check, after which Ray calls the replica running, returns when requests are served."""
    gateway = app.main.state.gateway
    go, factory = asyncio.Event(), gateway._factory
    loop = asyncio.get_running_loop()

    def slow(plan: EnginePlan) -> FakeEngine:
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result(10)
        return factory(plan)

    gateway._factory = slow
    replica = object.__new__(example.Gateway.kind)
    lifespan = ready(app.main)
    entering = asyncio.create_task(lifespan.__aenter__())
    await asyncio.sleep(0.2)
    check = asyncio.create_task(replica.check_health())
    await asyncio.sleep(0.2)
    assert not check.done() and gateway.phase == "loading"
    go.set()
    await entering
    await check
    assert gateway.phase == "ready"
    await lifespan.__aexit__(None, None, None)


@pytest.mark.anyio
@pytest.mark.parametrize("phase", ["failed", "dead"])
async def test_a_lost_engine_is_told(example: Any, phase: str) -> None:
    """Ray replaces a replica whose health check raises."""
    gateway = app.main.state.gateway
    replica = object.__new__(example.Gateway.kind)
    async with ready(app.main):
        await replica.check_health()
        gateway.phase, gateway.failure = phase, "no such weights"
        with pytest.raises(RuntimeError, match=f"{phase}: no such weights"):
            await replica.check_health()
        gateway.phase, gateway.failure = "ready", None  # or the lifespan ends the process


@pytest.mark.anyio
async def test_each_replica_has_a_port_of_its_own(example: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first free one, on which its metrics are, whichever replica the proxy would have taken."""
    sockets = [example.first_free_port(19400)]

    def listened(first: int) -> socket.socket:
        sockets.append(found(first))
        return sockets[-1]

    found = example.first_free_port
    monkeypatch.setattr(example, "first_free_port", listened)
    replica = example.Gateway.kind.__new__(example.Gateway.kind)
    await replica.__init__()
    try:
        async with ready(app.main), httpx.AsyncClient() as client:
            first, own = (one.getsockname()[1] for one in sockets)
            assert own > first
            for path in ("/metrics", "/ready"):
                assert (await client.get(f"http://127.0.0.1:{own}{path}")).status_code == 200
    finally:
        replica._own_port.cancel()
        await asyncio.gather(replica._own_port, return_exceptions=True)
        for one in sockets:
            one.close()
