"""`POST /drafts/k` at the gateway."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.app.conftest import build, complete, ready, served
from tests.app.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio


async def post(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await client.post("/drafts/k", json=body)


async def test_another_k_from_the_next_step_on() -> None:
    """Told at once; what is counted goes to the K that drafted it, and rates stand apart."""
    engine = FakeEngine(k=7, per_step=4)
    async with served(engine, allow_switch=True) as client:
        await complete(client, max_tokens=8)
        reply = await post(client, k=3)
        assert (reply.status_code, reply.json()) == (
            200,
            {"k": 3, "asked": 3, "previous": 7, "temporary": None},
        )
        await complete(client, max_tokens=8)
        assert engine.lengths == [7, 3]
        stats = (await client.get("/drafts/stats")).json()
        assert (stats["k"], stats["asked"], [entry["k"] for entry in stats["by_k"]]) == (3, 3, [3, 7])
        assert [entry["lifetime"]["acceptance_rate"] for entry in stats["by_k"]] == [1, 3 / 7]
        assert stats["lifetime"] == stats["by_k"][0]["lifetime"]
        assert [len(entry["window"]["per_position"]) for entry in stats["by_k"]] == [3, 7]
        loaded = (await client.get("/drafts")).json()
        assert (loaded["k"], loaded["asked"], loaded["default_k"]) == (3, 3, 7)
        lines = (await client.get("/metrics")).text.splitlines()
        assert 't5gemma_draft_acceptance_rate{k="3",window="lifetime"} 1.0' in lines
        assert f't5gemma_draft_acceptance_rate{{k="7",window="lifetime"}} {3 / 7}' in lines
        assert 't5gemma_draft_k_changes_total{by="request"} 1.0' in lines and "t5gemma_draft_k 3.0" in lines


async def test_each_is_told_its_own_k() -> None:
    """Of two that ask at once the first was told what the second had asked for."""

    class Slow(FakeEngine):
        async def set_draft_length(self, k: int) -> None:
            await asyncio.sleep(0.01)
            await super().set_draft_length(k)

    async with served(Slow(k=7), allow_switch=True) as client:
        asked = (3, 0, "auto", 5)
        replies = [reply.json() for reply in await asyncio.gather(*(post(client, k=k) for k in asked))]
        assert [reply["asked"] for reply in replies] == list(asked)
        assert [(reply["k"], reply["previous"]) for reply in replies] == [(3, 7), (0, 3), (0, 0), (5, 0)]


async def test_no_draft_at_all() -> None:
    """K = 0 drafts nothing: the answer is the same, the request has no draft tokens, and a later K drafts again."""
    engine = FakeEngine(k=3, per_step=2)
    async with served(engine, allow_switch=True) as client:
        texts = []
        for k in (3, 0, 3):
            await post(client, k=k)
            body = (await complete(client, max_tokens=6)).json()
            texts.append(body["choices"][0]["text"])
            spec = body["metrics"]["speculative_decoding"]
            assert spec["steps_by_k"] == ({"3": 3} if k else {"0": 6})
            assert spec["draft_acceptance_rate"] == (1 / 3 if k else None)
        assert texts[0] == texts[1] == texts[2]
        stats = (await client.get("/drafts/stats")).json()
        assert [entry["k"] for entry in stats["by_k"]] == [3]


async def test_auto_is_asked_for_and_left() -> None:
    async with served(FakeEngine(k=3), allow_switch=True) as client:
        asked = (await post(client, k="auto")).json()
        assert asked == {"k": 3, "asked": "auto", "previous": 3, "temporary": None}
        assert (await client.get("/drafts/stats")).json()["asked"] == "auto"
        assert "t5gemma_draft_k_auto 1.0" in (await client.get("/metrics")).text
        asked = (await post(client, k=7)).json()
        assert asked == {"k": 7, "asked": 7, "previous": 3, "temporary": None}


async def test_for_a_time() -> None:
    """The reply and the statistics say until when and what then; afterwards it is so, and nothing is said."""
    engine = FakeEngine(k=3)
    async with served(engine, allow_switch=True) as client:
        reply = (await post(client, k=0, seconds=60)).json()
        assert reply == {"k": 0, "asked": 0, "previous": 3, "temporary": {"seconds_left": 60, "then": 3}}
        stats = (await client.get("/drafts/stats")).json()
        assert (stats["k"], stats["temporary"]["then"]) == (0, 3) and 59 < stats["temporary"][
            "seconds_left"
        ] <= 60
        reply = (await post(client, k=1, seconds=0.5)).json()
        assert (reply["previous"], reply["temporary"]["then"]) == (0, 3)
        async with asyncio.timeout(20):
            while (stats := (await client.get("/drafts/stats")).json())["temporary"] is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert (stats["k"], stats["asked"]) == (3, 3)
            while engine.k != 3:  # the engine is told in a task of its own  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "k", "required"),
        ({"k": -1}, "k", 'whole number from 0, or "auto"'),
        ({"k": 8}, "k", "8 is above 7"),
        ({"k": 10**30}, "k", "above 7"),
        ({"k": 2.5}, "k", "whole number"),
        ({"k": True}, "k", "whole number"),
        ({"k": None}, "k", "whole number"),
        ({"k": "3"}, "k", "whole number"),
        ({"k": [3]}, "k", "whole number"),
        ({"k": 3, "batch": 1}, "batch", "not permitted"),
        ({"k": 0, "seconds": 0}, "seconds", "greater than 0"),
        ({"k": 0, "seconds": 601}, "seconds", "less than or equal to 600"),
        ({"k": 0, "seconds": True}, "seconds", "valid number"),
        ({"k": 0, "seconds": "9"}, "seconds", "valid number"),
    ],
)
async def test_errors_by_field(body: dict[str, Any], param: str, words: str) -> None:
    engine = FakeEngine(k=3)
    async with served(engine, allow_switch=True) as client:
        reply = await client.post("/drafts/k", json=body)
        error = reply.json()["error"]
        assert (reply.status_code, error["param"]) == (400, param) and words in error["message"]
        assert engine.lengths == [3]


async def test_other_bodies() -> None:
    async with served(FakeEngine(k=3), allow_switch=True) as client:
        for content in (b"", b"{", b"3", b"[]"):
            assert (await client.post("/drafts/k", content=content)).status_code == 400
        headers = {"Content-Type": "text/plain"}
        assert (await client.post("/drafts/k", content=b"{}", headers=headers)).status_code == 415
        assert (await client.get("/drafts/k")).status_code == 405


async def test_who_may_switch() -> None:
    """With keys whoever has one, without keys nobody unless it is allowed."""
    async with served(FakeEngine(k=3)) as client:
        reply = await post(client, k=1)
        assert (reply.status_code, reply.json()["error"]["type"]) == (403, "PermissionDeniedError")
        assert "T5GEMMA_ALLOW_SWITCH" in reply.json()["error"]["message"]
    async with served(FakeEngine(k=3), api_keys="secret", allow_switch=True) as client:
        assert (await post(client, k=1)).status_code == 401
        client.headers["Authorization"] = "Bearer secret"
        assert (await post(client, k=1)).status_code == 200


async def test_when_there_is_nothing_to_switch() -> None:
    """409 without a draft and with a short block, 503 while loading and draining."""
    async with served(FakeEngine(), allow_switch=True) as client:
        assert (await post(client, k=1)).status_code == 409
    async with served(FakeEngine(k=3), allow_switch=True, short_block=True) as client:
        reply = await post(client, k=1)
        assert reply.status_code == 409 and "T5GEMMA_SHORT_BLOCK" in reply.json()["error"]["message"]
    app = build(FakeEngine(k=3), allow_switch=True)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        assert (await post(client, k=1)).status_code == 503
        async with ready(app):
            app.state.gateway.drain()
            assert (await post(client, k=1)).status_code == 503


async def test_the_estimate() -> None:
    """From steps of known duration: the speed-up by the formula, the recommendation, and what /metrics says of them."""
    engine = FakeEngine(k=3, per_step=3, seconds=lambda k: 0.01 + 0.002 * k)
    async with served(engine) as client:
        before = (await client.get("/drafts/stats")).json()["estimate"]
        assert before["speedup"] is before["recommended_k"] is None
        assert before["speedup_reason"] == before["recommended_reason"] == "no request has run yet"
        for _ in range(12):
            await complete(client, max_tokens=256, ignore_eos=True)
            await asyncio.sleep(0)
        stats = (await client.get("/drafts/stats")).json()
        found = stats["estimate"]
        length = stats["lifetime"]["mean_acceptance_length"]
        assert found["speedup"]["value"] == pytest.approx(length * 0.01 / 0.016, rel=0.02)
        assert found["speedup"]["origin"] == "live" and found["batch"] == 1
        assert (
            found["recommended_k"] is not None and "with one request at a time" in found["recommended_reason"]
        )
        assert {0, 3} <= {entry["k"] for entry in found["by_k"]}
        assert [entry["batch"] for entry in found["baselines"]] == [1]
        text = (await client.get("/metrics")).text
        assert 't5gemma_draft_step_seconds{batch="1",k="3"} 0.016' in text
        assert f"t5gemma_draft_recommended_k {found['recommended_k']}.0" in text


async def test_plain_draws_by_seed_see_no_window() -> None:
    engine = FakeEngine(k=3, per_step=3, seconds=lambda k: 0.01)
    async with served(engine) as client:
        for _ in range(12):
            await complete(client, max_tokens=256, ignore_eos=True, seed=1, temperature=1.0)
        assert engine.lengths == [3]
        for _ in range(12):
            await complete(client, max_tokens=256, ignore_eos=True, seed=1, temperature=0)
        assert 0 in engine.lengths
