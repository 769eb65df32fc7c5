"""Keys, CORS, body limit and request ids."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from app.config.settings import SettingsError
from tests.app.conftest import build, complete, served
from tests.app.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio
UI = "http://ui.local"


async def test_keys() -> None:
    """401 with WWW-Authenticate on everything but the probes and the metrics (A38, E14)."""
    async with served(api_keys=("one", "two")) as client:
        for path in ("/health", "/ready", "/metrics", "/metrics/"):
            assert (await client.get(path)).status_code == 200
        for path in (
            "/v1/models",
            "/drafts",
            "/drafts/stats",
            "/version",
            "/openapi.json",
            "/nope",
            "/healthy",
        ):
            assert (await client.get(path)).status_code == 401
        reply = await complete(client)
        assert (reply.status_code, reply.json()["error"]["code"]) == (401, 401)
        assert reply.headers["www-authenticate"] == "Bearer"
        for value in ("Bearer wrong", "Bearer ", "Bearer", "one", "Basic one", "Bearer on", "Bearer onetwo"):
            assert (await client.get("/v1/models", headers={"Authorization": value})).status_code == 401
        for value in ("Bearer one", "bearer two"):
            assert (await client.get("/v1/models", headers={"Authorization": value})).status_code == 200


async def test_keys_under_a_root_path() -> None:
    """The prefix opens nothing and closes nothing."""
    async with served(api_keys=("one",), root_path="/api") as client:
        assert (await client.get("/api/health")).status_code == 200
        assert (await client.get("/api/v1/models")).status_code == 401
        assert (
            await client.get("/api/v1/models", headers={"Authorization": "Bearer one"})
        ).status_code == 200


@pytest.mark.parametrize("prefix", ["/v1", "/drafts", "/v1/models"])
async def test_a_root_path_that_hides_routes(prefix: str) -> None:
    """Each request below it would be 404."""
    with pytest.raises(SettingsError, match=f"T5GEMMA_ROOT_PATH={prefix}: paths of the API begin so"):
        build(FakeEngine(), root_path=prefix)


async def test_cors() -> None:
    """Preflight without a key; errors carry the header too; others get none (E14)."""
    ask = {
        "Origin": UI,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    async with served(FakeEngine(fail_after=0), api_keys=("one",), cors_origins=(UI,)) as client:
        told = await client.options("/v1/completions", headers=ask)
        assert told.status_code in (200, 204) and told.headers["access-control-allow-origin"] == UI
        other = await client.options("/v1/completions", headers={**ask, "Origin": "http://evil.example"})
        assert "access-control-allow-origin" not in other.headers
        key = {"Authorization": "Bearer one"}
        for headers, body, status in (
            ({}, {}, 401),
            (key, {"prompt": ""}, 400),
            (key, {"prompt": "Hi"}, 500),
        ):
            reply = await client.post("/v1/completions", json=body, headers={"Origin": UI, **headers})
            assert reply.status_code == status
            assert reply.headers["access-control-allow-origin"] == UI
            assert "retry-after" in reply.headers["access-control-expose-headers"].lower()


async def test_any_origin_never_with_credentials() -> None:
    """`*` is for readers without cookies (E14)."""
    async with served(cors_origins=("*",)) as client:
        reply = await client.get("/v1/models", headers={"Origin": UI, "Cookie": "a=b"})
        assert reply.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in reply.headers


async def test_unforeseen_errors_are_inside_of_cors() -> None:
    async with served(cors_origins=(UI,)) as client:
        app = client._transport.app  # type: ignore[attr-defined]
        app.state.gateway.identity = None
        reply = await client.get("/drafts", headers={"Origin": UI})
        assert (reply.status_code, reply.json()["error"]["message"]) == (500, "internal server error")
        assert reply.headers["access-control-allow-origin"] == UI


async def test_body_limit() -> None:
    """413 by the announced length, and by count when there is none (E15)."""
    engine = FakeEngine()
    async with served(engine, max_body_bytes=1000) as client:
        reply = await complete(client, "x" * 2000)
        assert (reply.status_code, reply.json()["error"]["code"]) == (413, 413)

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(30):
                yield b" " * 100

        reply = await client.post("/v1/completions", content=pieces())
        assert reply.status_code == 413
        assert not engine.seen
        assert (await complete(client, "x" * 200)).status_code == 200


async def test_request_ids() -> None:
    async with served() as client:
        reply = await client.get("/v1/models", headers={"X-Request-Id": "mine"})
        assert reply.headers["x-request-id"] == "mine"
        made = {(await client.get("/v1/models")).headers["x-request-id"] for _ in range(3)}
        assert len(made) == 3
        for odd in ("a b", "ü".encode().decode("latin-1"), "x" * 300):
            reply = await client.get("/v1/models", headers={"X-Request-Id": odd.encode("latin-1")})  # type: ignore[dict-item]
            assert len(reply.headers["x-request-id"]) == 32
        reply = await complete(client, prompt="")
        assert reply.headers["x-request-id"]


async def test_refusals_are_counted() -> None:
    """A 401 and a 413 are in the HTTP metric as other replies are."""
    async with served(api_keys=("one",), max_body_bytes=100) as client:
        assert (await complete(client)).status_code == 401
        big = await client.post(
            "/v1/completions", json={"prompt": "x" * 200}, headers={"Authorization": "Bearer one"}
        )
        assert big.status_code == 413
        lines = (await client.get("/metrics")).text.splitlines()
    for status in (401, 413):
        labels = f'{{handler="/v1/completions",method="POST",status="{status}"}}'
        assert any(line.endswith(f"http_requests_total{labels} 1.0") for line in lines)
