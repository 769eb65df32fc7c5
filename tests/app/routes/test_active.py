"""`POST /drafts/active`: another draft while the server runs, with a fake engine for each that is built."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from asgi_lifespan import LifespanManager

from app.config.environment import load_settings
from app.drafts import stat_logger
from app.drafts.stat_logger import ServeLogger, count_into
from app.engine import EnginePlan
from app.factory import create_app
from plugin.drafts.checkpoint import resolve
from plugin.encoder_counts import EncoderCounts
from tests.app.conftest import complete, served
from tests.app.fake_engine import FakeEngine
from tests.plugin.drafts.folders import write_draft, write_pair

pytestmark = pytest.mark.anyio


class Server:
    """A server whose drafts are `dflash` (first), `dflare`, `other` (made for a verifier of more layers) and `broken`,
    which no engine loads.
    """

    def __init__(self, folder: Path, **settings: Any) -> None:
        write_pair(folder)
        write_draft(folder / "dflare", "dflare")
        write_draft(folder / "broken", "dflare")
        write_draft(
            folder / "other", "dflare", lambda config: config.update(aux_hidden_state_layer_ids=[0, 2, 9])
        )
        self.engines: list[FakeEngine] = []
        self.failing = {"broken"}
        chosen = load_settings(
            env_file=None,
            **{"warm_up": False, "probe": False, "allow_switch": True, "checkpoints_dir": folder, **settings},
        )
        found = resolve(str(folder / "dflash"), None, str(folder / "verifier"), None)
        self.app = create_app(chosen, found, self.build)

    def build(self, plan: EnginePlan) -> FakeEngine:
        draft, k = plan.identity.draft, plan.identity.k
        assert draft is not None and k is not None
        assert all(engine.shut_down for engine in self.engines), "two engines at once"
        if Path(draft.path).name in self.failing:
            raise RuntimeError("no such tensor")
        engine = FakeEngine(k=k, per_step=2, ledger=plan.ledger)
        self.engines.append(engine)
        return engine

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        transport = httpx.ASGITransport(self.app)
        async with (
            LifespanManager(self.app),
            httpx.AsyncClient(transport=transport, base_url="http://s") as client,
        ):
            await self.app.state.gateway.loaded()
            yield client


def encoded(hits: int, misses: int, held: int) -> Any:
    """What an engine says that its encoder did in a step."""
    return SimpleNamespace(encoder_counts=EncoderCounts(hits, misses, 10 * hits, 10 * misses, held))


async def test_what_the_encoder_did_is_the_servers_whatever_it_drafts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sums go on with another draft and after one that failed; what is held is what the new engine holds."""
    monkeypatch.setattr(stat_logger, "_ledger", None)
    server = Server(tmp_path)
    async with server.client() as client:
        for draft, told in ((None, (1, 2, 500)), ("dflare", (0, 3, 70)), ("broken", (2, 0, 90))):
            if draft is not None:
                await switch(client, draft)
            ledger = server.engines[-1].ledger
            count_into(ledger)
            ServeLogger(None).record(encoded(*told), None)
        stats = (await client.get("/drafts/stats")).json()
        assert stats["family"] == "dflare"
        assert stats["encoder"] == {
            "hits": 3,
            "misses": 5,
            "tokens_saved": 30,
            "tokens_encoded": 50,
            "bytes_held": 90,
        }


async def switch(client: httpx.AsyncClient, draft: Any) -> httpx.Response:
    return await client.post("/drafts/active", json={"draft": draft})


async def until_loading(client: httpx.AsyncClient) -> None:
    while (await client.get("/ready")).status_code == 200:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_another_draft_and_back(tmp_path: Path) -> None:
    """Names, counts and the model's id; what each draft achieved stays its own, also after it comes back."""
    server = Server(tmp_path)
    async with server.client() as client:
        before = (await complete(client, max_tokens=6)).json()
        reply = (await switch(client, "dflare")).json()
        assert (reply["draft"], reply["family"]) == ("dflare", "dflare")
        after = (await complete(client, max_tokens=6, model=before["model"])).json()
        assert (after["choices"], after["model"]) == (before["choices"], before["model"])
        loaded = (await client.get("/drafts")).json()
        assert loaded["family"] == "dflare" and loaded["draft_path"].endswith("dflare")
        assert [one["name"] for one in loaded["available"] if one["active"]] == ["dflare"]
        stats = (await client.get("/drafts/stats")).json()
        assert stats["family"] == "dflare" and stats["lifetime"]["drafts"] == 3
        (former,) = stats["history"]
        assert former["draft"].endswith("dflash") and former["by_k"][0]["lifetime"]["drafts"] == 3
        assert 'family="dflare"' in (await client.get("/metrics")).text
        assert (await switch(client, "dflash")).status_code == 200
        await complete(client, max_tokens=6)
        stats = (await client.get("/drafts/stats")).json()
        assert stats["lifetime"]["drafts"] == 6 and len(stats["history"]) == 1
        assert [engine.shut_down for engine in server.engines] == [True, True, False]
    assert server.engines[-1].shut_down


@pytest.mark.parametrize("draft", ["dflare", "broken"])
async def test_what_the_encoder_did_still_counts(tmp_path: Path, draft: str) -> None:
    """Counters go on over a switch that succeeds and one that is taken back; what the engine held went with it."""
    server = Server(tmp_path)
    async with server.client() as client:

        async def told(counts: EncoderCounts) -> dict[str, float]:
            recorder = server.engines[-1].ledger
            assert recorder is not None
            recorder.encoder.record(0, counts)
            return await encoder(client)

        first = await told(EncoderCounts(1, 2, 30, 60, 900))
        assert first == {
            "hits": 1,
            "misses": 2,
            "tokens_saved": 30,
            "tokens_encoded": 60,
            "bytes_held": 900,
        }
        await switch(client, draft)
        assert len(server.engines) == 2
        assert await encoder(client) == {**first, "bytes_held": 0}
        again = await told(EncoderCounts(4, 1, 120, 9, 90))
        assert list(again.values()) == [5, 3, 150, 69, 90]
        assert (await switch(client, "dflash")).status_code == 200
        assert list((await encoder(client)).values()) == [5, 3, 150, 69, 90 * (draft == "broken")]


async def encoder(client: httpx.AsyncClient) -> dict[str, float]:
    """What /drafts/stats says of the encoder, which /metrics says, too."""
    told: dict[str, float] = (await client.get("/drafts/stats")).json()["encoder"]
    lines = (await client.get("/metrics")).text.splitlines()
    for name, value in told.items():
        series = "bytes" if name == "bytes_held" else f"{name}_total"
        assert f"t5gemma_encoder_cache_{series} {float(value)}" in lines
    return told


async def test_without_a_folder_there_is_nothing_to_choose() -> None:
    async with served(FakeEngine(k=3), allow_switch=True) as client:
        reply = await switch(client, "dflash")
        assert reply.status_code == 409 and "T5GEMMA_CHECKPOINTS_DIR" in reply.json()["error"]["message"]


async def test_accepted_requests_end_first_and_new_ones_come_back(tmp_path: Path) -> None:
    server = Server(tmp_path)
    async with server.client() as client:
        engine = server.engines[0]
        engine.hold = asyncio.Event()
        running = [asyncio.create_task(complete(client, max_tokens=6, stream=i % 2 == 1)) for i in range(4)]
        while len(engine.seen) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0)
        switching = asyncio.create_task(switch(client, "dflare"))
        await until_loading(client)
        late = await complete(client, max_tokens=6)
        assert (late.status_code, "Retry-After" in late.headers) == (503, True)
        assert (await switch(client, "dflash")).status_code == 503
        assert (await client.get("/health")).status_code == 200
        assert not engine.shut_down and not switching.done()
        engine.hold.set()
        replies = await asyncio.gather(*running)
        assert [reply.status_code for reply in replies] == [200] * 4
        assert all(
            "[DONE]" in reply.text or reply.json()["choices"][0]["text"] == " and s" for reply in replies
        )
        assert not engine.aborted
        assert (await switching).status_code == 200
        assert (await complete(client, max_tokens=6)).status_code == 200 and len(server.engines) == 2


async def test_an_engine_that_hangs_while_its_requests_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end by an error, and the other draft is served: nobody waits for an engine that is replaced anyway."""
    monkeypatch.setattr("app.watching.ASKS_S", 0.001)
    server = Server(tmp_path, hang_timeout_s=0.5)
    async with server.client() as client, asyncio.timeout(20):
        engine = server.engines[0]
        engine.hold = engine.hangs = asyncio.Event()
        running = asyncio.create_task(complete(client, max_tokens=6))
        while not engine.seen:  # noqa: ASYNC110
            await asyncio.sleep(0)
        switching = asyncio.create_task(switch(client, "dflare"))
        assert (await running).status_code == 503
        assert (await switching).status_code == 200
        assert (await complete(client, max_tokens=6)).status_code == 200 and len(server.engines) == 2


async def test_back_to_the_former_when_the_new_one_fails(tmp_path: Path) -> None:
    server = Server(tmp_path)
    async with server.client() as client:
        await complete(client, max_tokens=6)
        reply = await switch(client, "broken")
        assert reply.status_code == 500 and "no such tensor" in reply.json()["error"]["message"]
        assert (await client.get("/ready")).status_code == 200
        await complete(client, max_tokens=6)
        stats = (await client.get("/drafts/stats")).json()
        assert stats["family"] == "dflash" and stats["lifetime"]["drafts"] == 6
        assert len(server.engines) == 2 and server.engines[0].shut_down
        server.failing.clear()
        assert (await switch(client, "broken")).status_code == 200


async def test_neither_can_be_served(tmp_path: Path) -> None:
    """The process is to end with an error, so that a supervisor starts it again."""
    server = Server(tmp_path)
    async with LifespanManager(server.app):
        gateway = server.app.state.gateway
        await gateway.loaded()
        ended = asyncio.Event()
        gateway.on_end = ended.set
        server.failing = {"broken", "dflash"}
        transport = httpx.ASGITransport(server.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://s") as client:
            assert (await switch(client, "broken")).status_code == 503
            assert (await client.get("/health")).status_code == 503
        assert ended.is_set() and gateway.broken
        gateway.phase, gateway.failure = "stopped", None  # else the lifespan ends the test's process


async def test_a_client_that_leaves_stops_nothing(tmp_path: Path) -> None:
    server = Server(tmp_path)
    async with server.client() as client:
        asked = asyncio.create_task(switch(client, "dflare"))
        await until_loading(client)
        asked.cancel()
        await server.app.state.gateway.loaded()
        assert (await client.get("/drafts")).json()["family"] == "dflare"


async def test_refusals(tmp_path: Path) -> None:
    server = Server(tmp_path)
    async with server.client() as client:
        for body, status, param, words in (
            ({}, 400, "draft", "required"),
            ({"draft": 3}, 400, "draft", "string"),
            ({"draft": "x", "k": 3}, 400, "k", "not permitted"),
            ({"draft": "verifier"}, 404, "draft", "there: broken, dflare, dflash, other"),
            ({"draft": "../dflare"}, 404, "draft", "no '../dflare'"),
            ({"draft": "other"}, 409, "draft", "has 9, but"),
        ):
            reply = await client.post("/drafts/active", json=body)
            error = reply.json()["error"]
            assert (reply.status_code, error["param"]) == (status, param) and words in error["message"], body
        found = {one["name"]: one for one in (await client.get("/drafts")).json()["available"]}
        assert {name: one["fits"] for name, one in found.items()} == {
            "broken": True,
            "dflare": True,
            "dflash": True,
            "other": False,
        }
        assert "has 9, but" in found["other"]["misfit"]
        assert (await switch(client, "dflash")).json()["draft"] == "dflash"
        assert len(server.engines) == 1


async def test_who_may_switch(tmp_path: Path) -> None:
    async with Server(tmp_path, allow_switch=False).client() as client:
        assert (await switch(client, "dflare")).status_code == 403
