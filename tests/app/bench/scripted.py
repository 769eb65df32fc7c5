"""A server of known speed: what it streams, when, and what its counters say is written down beforehand.

It is one ASGI application for two uses: in virtual time through `StreamingTransport`, exact to the
nanosecond, and under uvicorn (`running`), where real clients can measure it.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

MODEL = "scripted"


@dataclass
class Script:
    """How the server behaves. `delays_s(n)` gives the times before each chunk of the n-th request from 0, each of which
    brings `tokens_per_chunk` tokens; with `k` every chunk is one draft step that had `accepted` tokens accepted.
    `raw(n)`, where it gives something, replaces the stream of the n-th request: seconds after it began, and what is
    sent then. `refuse` gives the words of an error of the given `status`, `sick` is what /health says.
    """

    delays_s: Callable[[int], list[float]] = lambda number: [0.0] * 4
    tokens_per_chunk: int = 1
    usage: int | None = -1
    ids: bool = True
    knows_ids: bool = True
    k: int = 0
    accepted: int = 0
    family: str | None = None
    tokenizes: bool = True
    token: Callable[[str, int], int] = lambda prompt, position: (len(prompt) + position) % 50 + 100
    refuse: Callable[[str], str | None] = lambda prompt: None
    status: int = 400
    sick: bool = False
    raw: Callable[[int], list[tuple[float, str]] | None] = lambda number: None
    cut: bool = False
    finish_reason: str | None = None
    gap: float = 5.0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    drafts: int = 0
    running: int = 0
    most_at_once: int = 0

    def app(self) -> Starlette:
        """The application; `usage` -1 tells the truth, None tells nothing."""
        return Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/completions", self._complete, methods=["POST"]),
                Route("/tokenize", self._tokenize, methods=["POST"]),
                Route("/metrics", self._metrics),
                Route("/drafts", self._drafts),
                Route("/version", self._version),
                Route("/ready", self._version),
                Route("/health", self._health),
            ]
        )

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": MODEL, "root": MODEL, "object": "model"}]})

    async def _version(self, request: Request) -> Response:
        return JSONResponse({"version": "1", "vllm": None})

    async def _health(self, request: Request) -> Response:
        return Response(status_code=503 if self.sick else 200)

    async def _drafts(self, request: Request) -> Response:
        return JSONResponse({"family": self.family, "k": self.k or None, "verifier": {"name": "/models/big"}})

    async def _tokenize(self, request: Request) -> Response:
        if not self.tokenizes:
            return JSONResponse({"error": {"message": "no"}}, 404)
        return JSONResponse({"count": len((await request.json())["prompt"].split())})

    async def _metrics(self, request: Request) -> Response:
        if not self.k:
            return PlainTextResponse("vllm:num_requests_running 0\n")
        head, labels = "vllm:spec_decode_num", 'engine="0",model_name="scripted"'
        lines = [
            f"# TYPE {head}_drafts counter",
            f"{head}_drafts_total{{{labels}}} {float(self.drafts)}",
            f"{head}_drafts_created{{{labels}}} 1.7e+09",
            f"{head}_draft_tokens_total{{{labels}}} {float(self.drafts * self.k)}",
            f"{head}_accepted_tokens_total{{{labels}}} {float(self.drafts * self.accepted)}",
        ]
        for position in range(self.k):
            count = self.drafts if position < self.accepted else 0
            lines.append(
                f'{head}_accepted_tokens_per_pos_total{{{labels},position="{position}"}} {float(count)}'
            )
        return PlainTextResponse("\n".join(lines) + "\n")

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        if body.get("return_token_ids") and not self.knows_ids:
            return JSONResponse({"error": {"message": "unknown field return_token_ids", "code": 400}}, 400)
        if problem := self.refuse(body["prompt"]):
            return JSONResponse({"error": {"message": problem, "code": self.status}}, self.status)
        number = len(self.bodies)
        self.bodies.append(body)
        if not body.get("stream"):
            return JSONResponse(self._logprobs(body))
        return StreamingResponse(self._events(body, number), media_type="text/event-stream")

    def _logprobs(self, body: dict[str, Any]) -> dict[str, Any]:
        tops = [{"token_id:1": -0.1, "token_id:2": -0.1 - self.gap} for _ in range(body["max_tokens"])]
        return {"choices": [{"text": "", "logprobs": {"top_logprobs": tops}}]}

    async def _events(self, body: dict[str, Any], number: int) -> AsyncIterator[str]:
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        clock = asyncio.get_running_loop().time
        try:
            if (parts := self.raw(number)) is not None:
                began = clock()
                for after, text in parts:
                    await asyncio.sleep(began + after - clock())
                    yield text
                return
            made, due, delays = 0, clock(), self.delays_s(number)
            for left, delay in zip(range(len(delays) - 1, -1, -1), delays, strict=True):
                due += delay  # against the clock, so that late wake-ups do not add up
                await asyncio.sleep(due - clock())
                ids = [self.token(body["prompt"], made + i) for i in range(self.tokens_per_chunk)]
                made += len(ids)
                self.drafts += bool(self.k)
                choice: dict[str, Any] = {"index": 0, "text": "".join(f" {token}" for token in ids)}
                if self.ids and body.get("return_token_ids"):
                    choice["token_ids"] = ids
                if not left:
                    choice["finish_reason"] = self.finish_reason
                yield event({"choices": [choice]})
            if self.usage is not None:
                count = made if self.usage < 0 else self.usage
                usage = {"prompt_tokens": 3, "completion_tokens": count, "total_tokens": count + 3}
                yield event({"choices": [], "usage": usage})
            if not self.cut:
                yield "data: [DONE]\n\n"
        finally:
            self.running -= 1


def event(payload: dict[str, Any]) -> str:
    """A server-sent event of a completion."""
    return f"data: {json.dumps({'id': 'cmpl-1', 'object': 'text_completion', **payload})}\n\n"


class StreamingTransport(httpx.AsyncBaseTransport):
    """An ASGI application as a transport that hands on each part of a body when it is sent; httpx's own does not."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        content = await request.aread()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": request.method,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "path": request.url.path,
            "raw_path": request.url.raw_path,
            "query_string": request.url.query,
            "root_path": "",
            "scheme": "http",
            "server": ("server", 80),
            "client": ("client", 1),
        }
        parts: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": content, "more_body": False}

        task = asyncio.create_task(self._app(scope, receive, parts.put))
        start = await parts.get()

        async def body() -> AsyncIterator[bytes]:
            more = True
            while more:
                part = await parts.get()
                more = part.get("more_body", False)
                yield part.get("body", b"")
            await task

        return httpx.Response(start["status"], headers=start["headers"], stream=_Body(body()))


class _Body(httpx.AsyncByteStream):
    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        self._parts = parts

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._parts


def client_of(script: Script) -> httpx.AsyncClient:
    """A client of the script in the running loop's own time."""
    return httpx.AsyncClient(transport=StreamingTransport(script.app()), base_url="http://server")


@contextmanager
def running(script: Script) -> Iterator[str]:
    """The address of the script under uvicorn, in a thread."""
    config = uvicorn.Config(
        script.app(), port=0, log_level="error", lifespan="off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + 10
        while not server.started:
            assert time.monotonic() < deadline and thread.is_alive(), "the server did not start"
            time.sleep(0.005)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
