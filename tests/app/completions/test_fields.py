"""Odd values of fields: `null` is absent, a boolean is no number, and long lists are refused without a word on each."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from app.completions.request import CompletionRequest
from tests.app.conftest import complete, served
from tests.app.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio
FIELDS = CompletionRequest.model_fields


@pytest.mark.parametrize("name", sorted(set(FIELDS) - {"prompt"}))
async def test_null_is_absent(name: str) -> None:
    """Every field takes it, as clients intend that send all they know (N11)."""
    engine = FakeEngine()
    async with served(engine) as client:
        assert (await complete(client)).status_code == 200
        reply = await complete(client, **{name: None})
        assert reply.status_code == 200, reply.text
        assert engine.seen[0].sampling == engine.seen[1].sampling


NUMBERS = [
    name
    for name, field in FIELDS.items()
    if "int" in str(field.annotation) or "float" in str(field.annotation)
]


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("name", [*NUMBERS, "stop_token_ids", "allowed_token_ids"])
async def test_a_boolean_is_no_number(name: str, value: bool) -> None:
    """`logprobs: true` asked for one alternative, `max_tokens: true` for one token (N11)."""
    assert {"logprobs", "max_tokens", "seed", "temperature", "n"} <= set(NUMBERS)
    given = {"5": value} if name == "logit_bias" else [value] if name.endswith("_ids") else value
    async with served() as client:
        error = (await complete(client, **{name: given})).json()["error"]
        assert (error["code"], error["param"]) == (400, name)


@pytest.mark.parametrize(
    "fields",
    [{"logit_bias": {"5": 101}}, {"logit_bias": 101}, {"repetition_penalty": 1e-300}, {"seed": -(2**64)}],
)
async def test_odd_values_are_refused(fields: dict[str, Any]) -> None:
    """What vLLM clips in silence, or what becomes zero in float32 and then divides (N11)."""
    async with served() as client:
        error = (await complete(client, **fields)).json()["error"]
        assert (error["code"], error["param"]) == (400, *fields)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop_token_ids", ["x"] * 90_000),
        ("allowed_token_ids", [1.5] * 1_000_000),
        ("stop", [1] * 1_000_000),
        ("bad_words", [None] * 1_000_000),
        ("logit_bias", {str(i): "x" for i in range(45_000)}),
        ("structured_outputs", {"choice": [0] * 1_000_000}),
    ],
)
async def test_many_mistakes_are_one(name: str, value: Any) -> None:
    """pydantic alone writes an error an entry, for seconds in which no other request moves (N03)."""
    raw = json.dumps({"prompt": "Hi", name: value})
    async with served() as client:
        began = time.process_time()
        error = (await client.post("/v1/completions", content=raw)).json()["error"]
        assert (error["code"], error["param"]) == (400, name) and time.process_time() - began < 1.5
