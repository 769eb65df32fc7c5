"""What plain `vllm serve` gets of the gateway: identity off the engine's configuration and the draft's routes."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app import vllm_serve
from app.drafts import stat_logger
from app.drafts.stat_logger import ServeLogger
from app.vllm_serve import DraftsPlugin, served
from plugin.drafts.checkpoint import DEMO
from plugin.drafts.families import FAMILIES
from tests.app.drafts.test_stat_logger import running, step


@pytest.fixture(autouse=True)
def no_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stat_logger, "_ledger", None)


ASKED = Namespace(model="asked", served_model_name=None)


async def _client(config: Any) -> TestClient:
    app, plugin = FastAPI(), DraftsPlugin()
    plugin.attach_router(app)
    await plugin.init_state(SimpleNamespace(vllm_config=config), app.state, ASKED)
    return TestClient(app)


def client(config: Any) -> TestClient:
    import asyncio

    return asyncio.run(_client(config))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_true_family_is_told(family: str) -> None:
    """All three run as method "dflash", and the route says which they are (B29)."""
    told = client(running(str(DEMO / "verifier"), str(DEMO / family))).get("/drafts").json()
    assert (told["family"], told["k"], told["default_k"]) == (family, 3, 7)
    assert (told["max_model_len"], told["max_encoder_len"], told["served_model_names"]) == (
        64,
        128,
        ["asked"],
    )


def test_counters_of_all_engines_arrive_in_the_one_ledger() -> None:
    config = running(str(DEMO / "verifier"), str(DEMO / "dflash"))
    browser = client(config)
    for index in (0, 1):
        ServeLogger(config, index).record(step(2, (2, 1, 1)), None)
    lifetime = browser.get("/drafts/stats").json()["lifetime"]
    assert (lifetime["drafts"], lifetime["draft_tokens"], lifetime["accepted_tokens"]) == (4, 12, 8)
    assert [p["accepted"] for p in lifetime["per_position"]] == [4, 2, 2]


def test_without_a_draft_everything_is_empty() -> None:
    browser = client(running(str(DEMO / "verifier"), None))
    assert browser.get("/drafts").json()["family"] is None
    stats = browser.get("/drafts/stats").json()
    assert (stats["family"], stats["lifetime"]["drafts"], stats["lifetime"]["acceptance_rate"]) == (
        None,
        0,
        None,
    )


def test_another_model_is_left_alone_and_the_routes_say_so(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}')
    config = running(str(tmp_path), None)
    assert isinstance(served(config, ("asked",)), vllm_serve.NothingServed)
    reply = client(config).get("/drafts")
    assert reply.status_code == 404
    assert "no T5Gemma 2" in reply.json()["detail"]
