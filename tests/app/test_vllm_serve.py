"""What plain `vllm serve` gets of the gateway: identity off the engine's configuration, counters, routes."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app import vllm_serve
from app.drafts.ledger import Ledger
from app.vllm_serve import DraftsPlugin, ServeLogger, count_into, served
from plugin.drafts.checkpoint import DEMO
from plugin.drafts.families import FAMILIES


@pytest.fixture(autouse=True)
def no_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_serve, "_ledger", None)


def running(model: str, draft: str | None, k: int = 3) -> Any:
    """An engine configuration as vLLM's server holds it."""
    return SimpleNamespace(
        model_config=SimpleNamespace(
            model=model,
            dtype="torch.float32",
            max_model_len=64,
            hf_config=SimpleNamespace(max_source_positions=128),
        ),
        speculative_config=SimpleNamespace(model=draft, num_speculative_tokens=k) if draft else None,
        scheduler_config=SimpleNamespace(max_num_seqs=2),
    )


ASKED = Namespace(model="asked", served_model_name=None)


async def _client(config: Any) -> TestClient:
    app, plugin = FastAPI(), DraftsPlugin()
    plugin.attach_router(app)
    await plugin.init_state(SimpleNamespace(vllm_config=config), app.state, ASKED)
    return TestClient(app)


def client(config: Any) -> TestClient:
    import asyncio

    return asyncio.run(_client(config))


def step(drafts: int, drafted: int, accepted: int, proposed: list[int], taken: list[int]) -> Any:
    spec = SimpleNamespace(
        num_drafts=drafts,
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
        num_draft_tokens_per_pos=proposed,
        num_accepted_tokens_per_pos=taken,
    )
    return SimpleNamespace(spec_decoding_stats=spec)


@pytest.mark.parametrize("family", FAMILIES)
def test_b29_the_true_family_is_told(family: str) -> None:
    """B29: all three run as method "dflash", and the route says which they are."""
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
        ServeLogger(config, index).record(step(2, 6, 4, [2, 2, 2], [2, 1, 1]), None)
    lifetime = browser.get("/drafts/stats").json()["lifetime"]
    assert (lifetime["drafts"], lifetime["draft_tokens"], lifetime["accepted_tokens"]) == (4, 12, 8)
    assert [p["accepted"] for p in lifetime["per_position"]] == [4, 2, 2]


@pytest.mark.parametrize("installed", [True, False])
def test_the_gateway_counts_every_step_once(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the entry point vLLM makes the logger, without it the gateway gives it; either way into its own ledger."""
    by_entry_point: list[Any] = [ServeLogger] if installed else []
    monkeypatch.setattr(vllm_serve, "load_stat_logger_plugin_factories", lambda: list(by_entry_point))
    ledger, config = Ledger(3, 60), running(str(DEMO / "verifier"), str(DEMO / "dflash"))
    made = [factory(config, 0) for factory in [*count_into(ledger), *by_entry_point]]
    for logger in made:
        logger.record(step(2, 6, 4, [2, 2, 2], [2, 1, 1]), None)
    assert (len(made), ledger.lifetime().drafts, ledger.lifetime().accepted) == (1, 2, [2, 1, 1])


def test_b23_without_a_draft_everything_is_empty() -> None:
    browser = client(running(str(DEMO / "verifier"), None))
    assert browser.get("/drafts").json()["family"] is None
    stats = browser.get("/drafts/stats").json()
    assert (stats["family"], stats["lifetime"]["drafts"], stats["lifetime"]["acceptance_rate"]) == (
        None,
        0,
        None,
    )


def test_steps_without_drafts_count_nothing() -> None:
    config = running(str(DEMO / "verifier"), str(DEMO / "dflash"))
    logger = ServeLogger(config)
    logger.record(None, None)
    logger.record(SimpleNamespace(spec_decoding_stats=None), None)
    assert logger.ledger.lifetime().drafts == 0


def test_another_model_is_left_alone_and_the_routes_say_so(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}')
    config = running(str(tmp_path), None)
    assert isinstance(served(config, ("asked",)), vllm_serve.NothingServed)
    reply = client(config).get("/drafts")
    assert reply.status_code == 404
    assert "no T5Gemma 2" in reply.json()["detail"]
