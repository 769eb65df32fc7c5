"""The official client against the server: what it sends is understood, and what it gets it can read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest

from tests.app.conftest import MODEL, build
from tests.app.fake_engine import FakeEngine
from tests.app.web_server import WebServer


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server on a socket."""
    with WebServer(build(FakeEngine(k=3, per_step=2), api_keys=("key",))) as server:
        yield f"{server}/v1"


def test_sync(url: str) -> None:
    client = openai.OpenAI(base_url=url, api_key="key")
    assert [model.id for model in client.models.list()] == [MODEL]
    whole = client.completions.create(model=MODEL, prompt="Hi", max_tokens=6, temperature=0, logprobs=1)
    assert whole.choices[0].text == " and s" and whole.choices[0].finish_reason == "length"
    assert whole.choices[0].logprobs is not None and len(whole.choices[0].logprobs.tokens or ()) == 6
    assert whole.usage is not None and whole.usage.completion_tokens_details is not None
    assert whole.usage.completion_tokens_details.accepted_prediction_tokens == 3
    stream = client.completions.create(
        model=MODEL, prompt="Hi", max_tokens=6, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].text for c in chunks[:-1]) == " and s"
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 6


def test_async(url: str) -> None:
    async def run() -> tuple[str, str]:
        async with openai.AsyncOpenAI(base_url=url, api_key="key") as client:
            whole = await client.completions.create(
                model=MODEL, prompt=["Hi", "Ho"], max_tokens=3, n=2, seed=1
            )
            text = ""
            async for chunk in await client.completions.create(
                model=MODEL, prompt="Hi", max_tokens=3, stream=True
            ):
                text += chunk.choices[0].text
            return "|".join(choice.text for choice in whole.choices), text

    assert asyncio.run(run()) == (" an| an| an| an", " an")


@pytest.mark.parametrize(
    ("key", "model", "prompt", "error"),
    [
        ("key", MODEL, "", openai.BadRequestError),
        ("wrong", MODEL, "Hi", openai.AuthenticationError),
        ("key", "gpt-4", "Hi", openai.NotFoundError),
    ],
)
def test_errors_are_its_own(
    url: str, key: str, model: str, prompt: str, error: type[openai.APIStatusError]
) -> None:
    """The client raises its class for the status, and shows our body (A38)."""
    client = openai.OpenAI(base_url=url, api_key=key, max_retries=0)
    with pytest.raises(error) as raised:
        client.completions.create(model=model, prompt=prompt)
    assert isinstance(raised.value.body, dict) and raised.value.body["code"] == raised.value.status_code
