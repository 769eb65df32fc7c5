"""The warm-up over a fake engine: what it sends, that nobody counts it, and what happens when it fails (N01, N02)."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator
from dataclasses import MISSING, fields
from typing import Any

import pytest

from app.engine import EngineDead, EngineFacts, EngineFailure, GenerateRequest, InvalidRequest, Sampling, Step
from app.warm_up import LOGPROBS, kinds
from tests.app.conftest import build, ready, served
from tests.app.fake_engine import VOCAB, FakeEngine

pytestmark = pytest.mark.anyio

TEXT_ONLY = {
    "stop",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "repetition_detection",
    "stream_interval",
}
"""Fields that act on text or in the scheduler, in Python that runs for every request."""


def varied(has_draft: bool) -> set[str]:
    """Fields of `Sampling` that some kind sets away from their default."""
    found = kinds(EngineFacts(VOCAB, 512, 256, has_draft, "float32"), [3, 4, 5])
    defaults = Sampling()
    return {
        field.name
        for one in found.values()
        for field in fields(Sampling)
        if getattr(one, field.name) != getattr(defaults, field.name)
    }


def test_every_field_that_changes_sampling_has_a_kind() -> None:
    """N01: a field added to the port without one would first be built in a user's request."""
    assert all(field.default is not MISSING for field in fields(Sampling))
    every = {field.name for field in fields(Sampling)}
    assert varied(has_draft=False) == every - TEXT_ONLY
    assert varied(has_draft=True) == every - TEXT_ONLY - {"min_p", "logit_bias", "logprob_token_ids"}


def test_every_variant_of_the_logprobs_kernel_is_built() -> None:
    """A kernel's variant hangs on the next power of two of alternatives + 1, and on whether that count is 1 or a
    multiple of 16.
    """

    def variant(count: int) -> tuple[int, bool, bool]:
        columns = count + 1
        return (1 << (columns - 1).bit_length(), columns == 1, columns % 16 == 0)

    assert {variant(count) for count in range(21)} == {variant(count) for count in LOGPROBS}


async def test_it_runs_before_ready_and_is_counted_nowhere() -> None:
    engine = FakeEngine(k=3)
    async with served(engine, warm_up=True) as client:
        sent = len(engine.seen)
        assert sent > 50 and not engine.running and not engine.aborted
        assert max(len(request.encoder_ids) for request in engine.seen) == 256
        assert (await client.get("/ready")).status_code == 200
        stats = (await client.get("/drafts/stats")).json()
        assert stats["lifetime"]["drafts"] == stats["window"]["drafts"] == 0
        assert "completions" not in (await client.get("/metrics")).text
    async with served(engine):
        assert len(engine.seen) == sent


class Dying(FakeEngine):
    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Step, None]:
        raise EngineDead("the engine process ended; its own lines above say why")
        yield


async def fails(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[logging.LogRecord]]:
    records: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.getLogger("app"), "handlers", [handler := logging.Handler()])
    monkeypatch.setattr(handler, "emit", records.append)
    monkeypatch.setattr("app.factory.signal.raise_signal", lambda number: None)
    app = build(engine, warm_up=True)
    async with ready(app):
        gateway = app.state.gateway
        assert gateway.phase == "failed" and gateway.broken
        failure = gateway.failure
        gateway.phase, gateway.failure = "ready", None  # or the lifespan ends the process
    assert engine.shut_down
    return failure, records


async def test_what_cannot_run_is_refused_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """N02: a draft that loads and cannot take a step ends the start with one line that names it."""
    failure, records = await fails(Dying(k=3), monkeypatch)
    assert failure.startswith("WarmUpError: demo-verifier with the draft demo was loaded and cannot run")
    assert "greedy" in failure and "its own lines above say why" in failure
    assert not any(record.exc_info for record in records)


async def test_a_request_that_fails_alone_ends_the_start_too(monkeypatch: pytest.MonkeyPatch) -> None:
    failure, _ = await fails(Failing(), monkeypatch)
    assert failure.startswith("WarmUpError: demo-verifier was loaded and cannot run")


class Failing(FakeEngine):
    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Step, None]:
        raise EngineFailure("RuntimeError: shapes")
        yield


async def test_what_the_engine_refuses_is_no_fault() -> None:
    engine = FakeEngine(refuse=InvalidRequest("not here"))
    async with served(engine, warm_up=True) as client:
        assert (await client.get("/ready")).status_code == 200


async def test_it_is_bounded_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not built by the limit is left to the first requests; the server serves."""
    import app.gateway as gateway_module
    from app.warm_up import warm_up

    async def short(*args: Any) -> None:
        await warm_up(*args, limit_s=0.2)

    monkeypatch.setattr(gateway_module, "warm_up", short)
    engine = FakeEngine(delay_s=0.05)
    began = time.monotonic()
    async with served(engine, warm_up=True) as client:
        assert (await client.get("/ready")).status_code == 200
        assert time.monotonic() - began < 5
        assert not engine.running


async def test_every_k_is_run_before_ready() -> None:
    """A window at another K must not make users wait for what that K needs; the K that is served comes last."""
    engine = FakeEngine(k=3)
    async with served(engine, warm_up=True):
        assert engine.lengths == [*range(8), 3]
        assert {request.id for request in engine.seen} >= {
            f"warm-up greedy, K = {k}, alone" for k in range(8)
        }
    plain = FakeEngine()
    async with served(plain, warm_up=True):
        assert plain.lengths == []
