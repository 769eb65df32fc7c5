"""`/drafts` and `/drafts/stats`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from httpx import ASGITransport, AsyncClient

from plugin.drafts.facts import Checkpoints
from tests.app.conftest import DRAFT, VERIFIER, build, complete, ready, served
from tests.app.fake_engine import FakeEngine
from tests.plugin.drafts.folders import write_draft, write_pair

pytestmark = pytest.mark.anyio


async def test_what_is_loaded() -> None:
    """K as asked beside the trained one (B27)."""
    async with served(FakeEngine(k=3)) as client:
        told = (await client.get("/drafts")).json()
        assert (told["family"], told["k"], told["default_k"], told["block_size"]) == ("dflash", 3, 7, 8)
        assert told["verifier"]["name"] == "demo-verifier"
        assert told["available"] == [] and told["dtype"] == "float32"


async def test_a_draft_of_the_hub(tmp_path: Path) -> None:
    """Its weights and its promise are looked at where the engine fetched it, and unknown before."""
    fetched = write_draft(tmp_path / "snapshot", "dflash", verifier="owner/verifier")
    (fetched / "val_metrics.json").write_text('{"fresh_mean_acceptance_length_k3": 3.5}')
    facts = replace(DRAFT, path="owner/draft", name="owner/draft", has_own_head=None, has_own_embedding=None)
    local = replace(facts, path=str(fetched), has_own_head=True, has_own_embedding=False)
    engine = FakeEngine(k=3, per_step=4, checkpoints=Checkpoints(VERIFIER, local, 3))
    app = build(engine, probe=True)
    gateway = app.state.gateway
    gateway.identity = replace(gateway.identity, checkpoints=Checkpoints(VERIFIER, facts, 3))
    told = gateway.identity.to_json()
    assert (told["draft_path"], told["lm_head"], told["embedding"]) == ("owner/draft", "unknown", "unknown")
    async with ready(app), AsyncClient(transport=ASGITransport(app), base_url="http://server") as client:
        told = (await client.get("/drafts")).json()
    assert (told["draft"], told["draft_path"]) == ("owner/draft", str(fetched))
    assert (told["lm_head"], told["embedding"]) == ("own", "shared")
    assert told["probe"]["promised_acceptance_length"] == 3.5


async def test_available_drafts(tmp_path: Path) -> None:
    """Family by config; a broken one is listed with its fault; what is no draft is not."""
    write_pair(tmp_path)
    write_draft(tmp_path / "eagle3", "dflare")
    (tmp_path / "dflash" / "model.safetensors").write_bytes(b"version https://git-lfs")
    (tmp_path / "note.txt").write_text("x")
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "config.json")
    for name, text in (("cut", b'{"a":'), ("bytes", b"\xff"), ("another", b'{"model_type": "bert"}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_bytes(text)
    async with served(FakeEngine(k=3), checkpoints_dir=tmp_path) as client:
        found = {entry["name"]: entry for entry in (await client.get("/drafts")).json()["available"]}
        assert set(found) == {"bytes", "cut", "dflash", "eagle3", "pipe"}
        assert all(f"{name}/config.json" in found[name]["problem"] for name in ("bytes", "cut"))
        assert "pipe, socket or device" in found["pipe"]["problem"]
        assert found["eagle3"]["family"] == "dflare" and found["eagle3"]["problem"] is None
        assert found["dflash"]["family"] is None and "model.safetensors" in found["dflash"]["problem"]


async def test_stats_without_traffic() -> None:
    """Zeros and nulls, K positions (B23)."""
    async with served(FakeEngine(k=3)) as client:
        stats = (await client.get("/drafts/stats")).json()
        assert (stats["family"], stats["k"]) == ("dflash", 3)
        for span in ("lifetime", "window"):
            assert [stats[span][key] for key in ("drafts", "draft_tokens", "accepted_tokens")] == [0, 0, 0]
            assert stats[span]["acceptance_rate"] is stats[span]["mean_acceptance_length"] is None
            assert stats[span]["per_position"] == [
                {"position": i, "proposed": 0, "accepted": 0, "rate": None, "conditional_rate": None}
                for i in range(3)
            ]
        assert stats["window"]["seconds"] == 60


async def test_without_a_draft() -> None:
    """Family null, nothing else missing (B23)."""
    async with served() as client:
        stats = (await client.get("/drafts/stats")).json()
        assert stats["family"] is stats["k"] is None
        assert stats["lifetime"]["per_position"] == []
        assert (await client.get("/drafts")).json()["family"] is None


async def test_stats_and_gauges_agree() -> None:
    """At the gateway, too, sums fit, rates are ratios of sums, and /metrics says the same (B24)."""
    async with served(FakeEngine(k=3, per_step=2)) as client:
        await complete(client, max_tokens=6)
        await complete(client, max_tokens=3)
        life = (await client.get("/drafts/stats")).json()["lifetime"]
        assert (life["drafts"], life["draft_tokens"], life["accepted_tokens"]) == (5, 15, 4)
        assert sum(p["accepted"] for p in life["per_position"]) == 4
        assert life["acceptance_rate"] == 4 / 15 and life["mean_acceptance_length"] == 1 + 4 / 5
        assert [p["rate"] for p in life["per_position"]] == [4 / 5, 0, 0]
        assert [p["conditional_rate"] for p in life["per_position"]] == [4 / 5, 0, None]
        lines = (await client.get("/metrics")).text.splitlines()
        assert f't5gemma_draft_acceptance_rate{{k="3",window="lifetime"}} {4 / 15}' in lines
        assert 't5gemma_draft_position_acceptance_rate{k="3",position="0",window="window"} 0.8' in lines
        assert 't5gemma_drafts_total{k="3"} 5.0' in lines
