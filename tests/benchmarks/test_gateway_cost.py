"""The cost script measures right answers only, and nothing of the shell reaches its servers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.gateway_cost import TOKENS, BadReply, Server, stream, tail, whole

TEXT: dict[str, Any] = {"choices": [{"index": 0, "text": "a"}]}


def usage(tokens: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"completion_tokens": tokens}}


def client(*events: Any) -> httpx.AsyncClient:
    """A client of a server that says these events, whatever it is asked."""
    text = "".join(f"data: {e if isinstance(e, str) else json.dumps(e)}\n\n" for e in events)
    transport = httpx.MockTransport(lambda request: httpx.Response(200, text=text))
    return httpx.AsyncClient(transport=transport, base_url="http://server")


@pytest.mark.anyio
async def test_a_right_stream_is_timed() -> None:
    assert await stream(client(TEXT, usage(TOKENS), "[DONE]"), {}) > 0


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("events", "why"),
    [
        ((), "DONE"),
        ((TEXT, usage(TOKENS)), "DONE"),
        ((TEXT, {"error": {"message": "lost"}}, "[DONE]"), "lost"),
        ((usage(TOKENS), "[DONE]"), "no text"),
        ((TEXT, "[DONE]"), "None"),
        ((TEXT, usage(TOKENS - 1), "[DONE]"), str(TOKENS - 1)),
    ],
)
async def test_a_wrong_stream_is_refused(events: tuple[Any, ...], why: str) -> None:
    with pytest.raises(BadReply, match=why):
        await stream(client(*events), {})


@pytest.mark.anyio
async def test_a_short_reply_is_refused() -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=usage(3)))
    with pytest.raises(BadReply, match="3"):
        await whole(httpx.AsyncClient(transport=transport, base_url="http://server"), {})


def test_the_shell_sets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither variables nor a `.env` beside the caller reach a server; what it writes is kept."""
    monkeypatch.setenv("T5GEMMA_K", "1")
    code = "import os; print(sorted(n for n in os.environ if n.startswith('T5GEMMA_')), os.listdir())"
    server = Server("a server", [sys.executable, "-c", code], 0, {"T5GEMMA_DTYPE": "float32"})
    assert server.start(tmp_path).wait(30) == 0
    assert tail(server.log(tmp_path)) == "['T5GEMMA_DTYPE'] ['a-server.log']"
