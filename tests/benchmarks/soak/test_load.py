"""The load of a soak over a fake engine on a real socket: nothing right is called wrong, nothing wrong right."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice

import httpx
import pytest

from app.bench.client import http_client
from app.engine import GenerateRequest
from benchmarks.soak.books import Books, Check, reckoning
from benchmarks.soak.cases import WEIGHTS, Case, bases, mixed, of_every_kind
from benchmarks.soak.load import Seen, answers_alone, send, soak
from plugin.training.data.problems.generate import generate
from tests.app.conftest import build
from tests.app.fake_engine import FakeEngine, tokens
from tests.app.web_server import WebServer

COUNT = 250
PROMPTS = [problem.question for problem in islice(generate(7, "fresh"), 6)]


def said(request: GenerateRequest) -> list[int]:
    """An answer that belongs to the prompt alone."""
    return tokens(
        f"{sum(request.encoder_ids)} is what {request.encoder_ids[1:9]} comes to, and so on and on."
    )


async def soaked(url: str, disturb: Callable[[], None]) -> tuple[Seen, list[Check]]:
    async with http_client(url, own=True) as client:
        ids = [(await client.post("/tokenize", json={"prompt": p})).json()["tokens"] for p in PROMPTS]
        texts = [(await send(client, case)).choices[0].text for case in bases(PROMPTS)]
        cases = of_every_kind(PROMPTS, ids, texts, 256, 3)
        assert cases.keys() == WEIGHTS.keys()
        every = [case for kind in cases.values() for case in kind]
        alone, counted, ended = await answers_alone(client, every), await Books.read(client), []
        disturb()

        async def after(count: int) -> None:
            ended.append(count)

        seen = await soak(client, mixed(cases, COUNT, 0), alone, 8, after)
        assert ended == list(range(1, COUNT + 1)) and sum(seen.kinds.values()) == COUNT
        async with asyncio.timeout(5):
            while (now := await Books.read(client)).sum("t5gemma_sequences_in_flight"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        # The fake engine has no series of its own.
        checks = [
            c
            for c in reckoning(counted, now, seen, 3)
            if c.name.startswith(("/v1", "/tok", "/drafts/k", "re"))
        ]
        return seen, checks


def engine(script: Callable[[GenerateRequest, int], list[int]]) -> FakeEngine:
    return FakeEngine(script=script, k=3, per_step=4, delay_s=0.001)


def test_all_that_is_right() -> None:
    with WebServer(build(engine(lambda request, _: said(request)), allow_switch=True)) as url:
        seen, checks = asyncio.run(soaked(url, lambda: None))
    assert not seen.faults and seen.lost == 0, seen.faults
    assert all(check.right for check in checks), [check.words for check in checks if not check.right]
    assert {check.name for check in checks} >= {"/v1/completions 200", "/v1/completions 400", "/tokenize 200"}
    assert seen.left["/v1/completions"] > 5 and seen.sequences > COUNT / 2 and seen.tokens > 3_000


def test_mixed_up_answers_are_found() -> None:
    """Of every hundredth sequence, somebody else's."""
    count, wrong = 0, False

    def script(request: GenerateRequest, _: int) -> list[int]:
        nonlocal count
        count += wrong
        return tokens("somebody else's") if count % 100 == 50 else said(request)

    def disturb() -> None:
        nonlocal wrong
        wrong = True

    with WebServer(build(engine(script), allow_switch=True)) as url:
        seen, checks = asyncio.run(soaked(url, disturb))
    assert 0 < seen.wrong < 20 and "somebody else" in " ".join(seen.faults)
    assert [check.name for check in checks if not check.right] == ["replies that differ"]


def test_lost_replies_are_found() -> None:
    """A connection that ends without a reply."""

    def lose(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("gone")

    async def run() -> Seen:
        async with httpx.AsyncClient(transport=httpx.MockTransport(lose), base_url="http://server") as client:
            return await soak(client, [Case("whole", {"prompt": "a"})] * 3, {}, 2, lambda _: asyncio.sleep(0))

    seen = asyncio.run(run())
    assert seen.lost == seen.wrong == 3 and "ReadError gone" in seen.faults[0]


@pytest.mark.parametrize(("kind", "sequences"), [("samples", 3), ("list", 3), ("whole", 1), ("refused", 0)])
def test_sequences(kind: str, sequences: int) -> None:
    cases = of_every_kind(PROMPTS, [[2, 5]] * 6, ["some text"] * 6, 8, 7)
    assert cases[kind][0].sequences == sequences
