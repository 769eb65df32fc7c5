"""Ray replicas are ready when they say so, are replaced when their engine dies, and have metrics each; a kill and a
rolling update under load lose nothing else (N28).
"""

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
from tests.config.load import CLIENTS

ROOT = Path(__file__).parents[2]


RAY = pytest.mark.skipif(
    not importlib.util.find_spec("ray"), reason="Ray is not installed (`pip install .[ray]`)"
)


def seen_in(scenario: str) -> Any:
    """What `tests/config/ray_replicas.py` saw, in a process of its own."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    ended = subprocess.run(
        [sys.executable, "-m", "tests.config.ray_replicas", scenario],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    (told,) = [line for line in ended.stdout.splitlines() if line.startswith("{")]  # Ray writes there, too
    print(told)
    return json.loads(told)


@RAY
def test_two_replicas() -> None:
    """`serve.run` returns when both serve, each has its own metrics, and both are replaced after their engines died."""
    seen = seen_in("engines_die")
    assert seen["run_s"] >= 4 and list(seen["first"].values()) == [1, 1], seen
    assert list(seen["second"].values()) == [1, 1], seen


@RAY
def test_a_killed_replica_loses_only_what_it_was_at() -> None:
    """Those requests end at once, with 500 or a broken stream; all others are answered by the other replica."""
    seen = seen_in("killed")
    assert (
        list(seen["second"].values()) == [1, 1] and len(seen["second"].keys() & seen["first"].keys()) == 1
    ), seen
    assert seen["requests"] > 100 and len(seen["failed"]) <= CLIENTS, seen
    for began, ended, _, failure in seen["failed"]:
        assert began < 0 < ended < 2 and failure.startswith(("500", "RemoteProtocolError")), seen


@RAY
def test_a_rolling_update_loses_nothing() -> None:
    seen = seen_in("updated")
    assert list(seen["second"].values()) == [1, 1] and not seen["second"].keys() & seen["first"].keys(), seen
    assert seen["requests"] > 100 and not seen["failed"], seen


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
