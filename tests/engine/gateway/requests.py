"""Requests to a running gateway and how to read their answers."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.engine.gateway.process import GatewayProcess

K = 7
PROMPT = "A train travels 60 miles in 2 hours. What is its average speed?"


def events(reply: httpx.Response) -> list[Any]:
    """The chunks of a stream that ended properly."""
    assert reply.status_code == 200, reply.text
    frames = reply.text.split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-2]]


def streamed(server: GatewayProcess, prompt: Any, **fields: Any) -> tuple[str, str | None]:
    """Text and finish reason of a stream."""
    chunks = [c["choices"][0] for c in events(server.complete(prompt, stream=True, **fields))]
    return "".join(c["text"] for c in chunks), chunks[-1]["finish_reason"]


def whole(server: GatewayProcess, prompt: Any, **fields: Any) -> dict[str, Any]:
    """The first choice."""
    reply = server.complete(prompt, **fields)
    assert reply.status_code == 200, reply.text
    choice: dict[str, Any] = reply.json()["choices"][0]
    return choice
