"""`/tokenize`, `/detokenize`, and the chat route that is not there."""

from __future__ import annotations

import pytest

from tests.app.conftest import served
from tests.app.fake_engine import BOS, VOCAB, tokens

pytestmark = pytest.mark.anyio


async def test_there_and_back() -> None:
    async with served() as client:
        told = (await client.post("/tokenize", json={"prompt": "né", "return_token_strs": True})).json()
        assert told["tokens"] == [BOS, *tokens("né")] and told["count"] == 4
        assert (told["max_model_len"], told["max_encoder_len"]) == (512, 256)
        assert len(told["token_strs"]) == 4
        bare = await client.post("/tokenize", json={"prompt": "né", "add_special_tokens": False})
        assert bare.json()["tokens"] == tokens("né")
        text = await client.post("/detokenize", json={"tokens": tokens("né")})
        assert text.json() == {"prompt": "né"}


@pytest.mark.parametrize("ids", [[VOCAB], [-1], ["x"], [2**70]])
async def test_ids_outside(ids: list[object]) -> None:
    async with served() as client:
        reply = await client.post("/detokenize", json={"tokens": ids})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tokens")


@pytest.mark.parametrize("route", ["chat/completions", "responses", "embeddings"])
async def test_what_openai_has_besides_is_not_offered(route: str) -> None:
    """A status that OpenAI's clients take for final: they send 408, 409, 429 and all from 500 on again (N20)."""
    async with served() as client:
        reply = await client.post(f"/v1/{route}", json={"messages": []})
        assert reply.status_code == 404 and "/v1/completions" in reply.json()["error"]["message"]
