"""A served application over a fake engine, in this process and without a socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from asgi_lifespan import LifespanManager
from fastapi import FastAPI

from app.config.environment import load_settings
from app.engine import EnginePlan
from app.factory import create_app
from plugin.drafts.facts import Checkpoints, DraftFacts, VerifierFacts
from plugin.drafts.families import FAMILIES, VERIFIER_ARCHITECTURE
from tests.app.fake_engine import VOCAB, FakeEngine

MODEL = "demo"
VERIFIER = VerifierFacts(
    path="demo-verifier",
    name="demo-verifier",
    architecture=VERIFIER_ARCHITECTURE,
    hidden_size=64,
    vocab_size=VOCAB,
    num_encoder_layers=4,
    num_decoder_layers=4,
    sliding_window=8,
    max_positions=512,
    dtype="float32",
)
DRAFT = DraftFacts(
    path=MODEL,
    name=MODEL,
    family="dflash",
    architecture=FAMILIES["dflash"].speculators_class,
    default_k=7,
    block_size=8,
    aux_layer_ids=(0, 2),
    mask_token_id=4,
    vocab_size=VOCAB,
    draft_vocab_size=VOCAB,
    num_layers=2,
    hidden_size=64,
    target_hidden_size=64,
    intermediate_size=128,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    has_own_head=True,
    has_own_embedding=True,
    sample_from_anchor=False,
    markov_head_type=None,
    markov_rank=None,
    confidence_head=False,
    confidence_head_with_markov=False,
    verifier_name="../verifier",
    max_positions=512,
)


def build(engine: FakeEngine, **settings: Any) -> FastAPI:
    """The application; it serves once its lifespan runs. With `engine.k` it has a draft of that K. A fake engine needs
    no warm-up and no probe, which would only fill its lists.
    """
    limits = {"max_model_len": 512, "max_encoder_len": 256, "warm_up": False, "probe": False}
    chosen = load_settings(env_file=None, **{**limits, **settings})
    checkpoints = Checkpoints(VERIFIER, DRAFT if engine.k else None, engine.k or None)
    if not engine.k:
        chosen = chosen.model_copy(update={"served_model_name": chosen.served_model_name or (MODEL,)})

    def factory(plan: EnginePlan) -> FakeEngine:
        plan.progress("load", "fake")
        engine.ledger = plan.ledger
        return engine

    return create_app(chosen, checkpoints, factory)


@asynccontextmanager
async def ready(app: FastAPI) -> AsyncIterator[FastAPI]:
    """The application with its lifespan running and its engine loaded."""
    async with LifespanManager(app):
        await app.state.gateway.loaded()
        yield app


@asynccontextmanager
async def served(engine: FakeEngine | None = None, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a ready server over `engine`."""
    async with ready(build(engine or FakeEngine(), **settings)) as app:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            yield client


async def complete(client: httpx.AsyncClient, prompt: Any = "Hi", **fields: Any) -> httpx.Response:
    """`POST /v1/completions`; a field given as None is sent as null."""
    return await client.post("/v1/completions", json={"prompt": prompt, **fields})


def events(response: httpx.Response) -> list[Any]:
    """The chunks of an event stream; the last frame must be `[DONE]`."""
    assert response.headers["content-type"].startswith("text/event-stream")
    frames = response.text.split("\n\n")
    assert frames.pop() == "" and all(frame.startswith("data: ") for frame in frames)
    assert frames.pop() == "data: [DONE]"
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


def text_of(chunks: list[Any], index: int = 0) -> str:
    """The text of one choice, put together."""
    return "".join(c["text"] for chunk in chunks for c in chunk["choices"] if c["index"] == index)
