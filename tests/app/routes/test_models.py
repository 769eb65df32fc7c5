"""Served names, and what a request may call the model."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app.conftest import complete, served

pytestmark = pytest.mark.anyio


async def test_served_names() -> None:
    """Only the served names, all of them accepted, the first reported (D21, A39)."""
    async with served(served_model_name=("a", "org/b")) as client:
        listed = (await client.get("/v1/models")).json()
        assert listed["object"] == "list" and [m["id"] for m in listed["data"]] == ["a", "org/b"]
        assert listed["data"][0]["max_model_len"] == 512 and listed["data"][0]["max_encoder_len"] == 256
        for name in ("a", "org/b"):
            assert (await client.get(f"/v1/models/{name}")).json()["id"] == name
            reply = await complete(client, model=name)
            assert reply.status_code == 200 and reply.json()["model"] == "a"
        assert (await client.get("/v1/models/c")).status_code == 404


@pytest.mark.parametrize("name", ["gpt-4", "", "demo ", "google/t5gemma-2-1b-1b"])
async def test_unknown_model(name: str) -> None:
    """404 that repeats the name (A39)."""
    async with served() as client:
        reply = await complete(client, model=name)
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["param"]) == (404, 404, "model")
        assert repr(name) in error["message"]


@pytest.mark.parametrize(("fields", "status"), [({}, 200), ({"model": None}, 200), ({"model": 5}, 400)])
async def test_model_left_out(fields: dict[str, Any], status: int) -> None:
    """Left out or null means the first served name (A40)."""
    async with served() as client:
        reply = await complete(client, max_tokens=1, **fields)
        assert reply.status_code == status
        body = reply.json()
        assert body["model"] == "demo" if status == 200 else body["error"]["param"] == "model"


async def test_version() -> None:
    async with served() as client:
        assert set((await client.get("/version")).json()) == {"version", "vllm"}
