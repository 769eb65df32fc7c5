"""One server as the benchmark sees it: which model it serves, and how it streams a completion."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from app.bench.arithmetic import ChunkTimes
from app.bench.errors import BenchError
from app.bench.sse import DONE, EventParser

READ_TIMEOUT_S = 600.0
"""Longest silence of a stream, and of a server that loads."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """What every request asks for; always greedy, since outputs of two arms must be comparable."""

    max_tokens: int = 128
    seed: int = 0
    ignore_eos: bool = False


@dataclass(slots=True)
class Reply:
    """What one request got. `tokens` is what the server's usage says, None when it says nothing; `token_ids` is None
    when the server gives no ids; `error` is None when the stream came to its end.
    """

    timing: ChunkTimes
    text: str = ""
    token_ids: list[int] | None = field(default_factory=list)
    tokens: int | None = None
    prompt_tokens: int | None = None
    error: str | None = None

    def take(self, event: str, now: float) -> None:
        """Adds what an event holds that arrived now."""
        chunk = json.loads(event)
        if "error" in chunk:
            self.error = _message(event.encode())
            return
        if usage := chunk.get("usage"):
            tokens = usage.get("completion_tokens")
            self.tokens = tokens if isinstance(tokens, int) else None
            self.prompt_tokens = usage.get("prompt_tokens")
        for choice in (chunk.get("choices") or [])[:1]:
            self.timing.chunks.append(now)
            text, ids = choice.get("text") or "", choice.get("token_ids")
            self.text += text
            # A chunk with text but no ids means that the server gives none; an empty last chunk does not.
            if ids is None and text:
                self.token_ids = None
            elif self.token_ids is not None:
                self.token_ids.extend(ids or [])

    def end(self, done: bool) -> None:
        """Nothing follows; `done`: the server said so itself."""
        if self.error is None and not done:
            self.error = "the stream ended without [DONE]"
        elif self.error is None and not self.timing.chunks:
            self.error = "the stream had no output"
        if not self.token_ids and self.text:
            self.token_ids = None


@dataclass(frozen=True, slots=True)
class Target:
    """A server that answers: its first model, and what it says of itself ({} where it says nothing)."""

    client: httpx.AsyncClient
    model: str
    gives_ids: bool
    drafts: dict[str, Any] = field(default_factory=dict)
    version: dict[str, Any] = field(default_factory=dict)

    @classmethod
    async def find(cls, client: httpx.AsyncClient, prompt: str) -> Target:
        """Asks the server what it is, then for one token, with which it shows whether it gives token ids.

        Raises:
            BenchError: it cannot be reached, serves no model, or refuses a plain request.
        """
        try:
            models = await client.get("/v1/models")
            models.raise_for_status()
            model = str(models.json()["data"][0]["id"])
            drafts, version = await optional_json(client, "/drafts"), await optional_json(client, "/version")
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise BenchError(f"{_address(client)}/v1/models: {_words(error)}") from None
        target = cls(client, model, True, drafts, version)
        reply = await target.complete(prompt, Sampling(max_tokens=1))
        if reply.error is not None and "return_token_ids" in reply.error:
            target = replace(target, gives_ids=False)
            reply = await target.complete(prompt, Sampling(max_tokens=1))
        if reply.error is not None:
            raise BenchError(f"{_address(client)}/v1/completions: {reply.error}")
        return replace(target, gives_ids=reply.token_ids is not None)

    def body(self, prompt: str | list[int], sampling: Sampling) -> dict[str, Any]:
        """The request that every arm gets; a prompt is a text or token ids."""
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": sampling.max_tokens,
            "temperature": 0,
            "seed": sampling.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.gives_ids:
            body["return_token_ids"] = True
        if sampling.ignore_eos:
            body["ignore_eos"] = True
        return body

    async def complete(self, prompt: str | list[int], sampling: Sampling) -> Reply:
        """One streamed completion; what goes wrong is in the reply."""
        clock = asyncio.get_running_loop().time
        reply, done = Reply(ChunkTimes(clock())), False
        try:
            request = self.client.stream("POST", "/v1/completions", json=self.body(prompt, sampling))
            async with request as response:
                if not response.is_success:
                    reply.error = f"{response.status_code}: {_message(await response.aread())}"
                    return reply
                parser = EventParser()
                async for portion in response.aiter_bytes():
                    now = clock()
                    for event in parser.feed(portion):
                        if event == DONE:
                            done = True
                        else:
                            reply.take(event, now)
        except (httpx.HTTPError, ValueError, TypeError, LookupError) as error:
            reply.error = _words(error)
        reply.end(done)
        return reply

    async def whole(self, prompt: str | list[int], sampling: Sampling, **fields: Any) -> httpx.Response:
        """The answer to the same request in one piece, with `fields` besides."""
        body = self.body(prompt, sampling) | {"stream": False, **fields}
        del body["stream_options"]
        return await self.client.post("/v1/completions", json=body)

    async def count_tokens(self, text: str) -> int | None:
        """Tokens of a text by the server's own tokenizer; None when it does not tell."""
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        answer = await self.client.post("/tokenize", json=body)
        return int(answer.json()["count"]) if answer.is_success else None

    async def top_two_gap(self, prompt: str, sampling: Sampling, position: int) -> float | None:
        """Logprob of the likeliest token minus that of the next, at one position of the greedy output; None when the
        server does not tell.
        """
        longer = replace(sampling, max_tokens=position + 1)
        answer = await self.whole(prompt, longer, logprobs=2, return_tokens_as_token_ids=True)
        if not answer.is_success:
            return None
        tops = answer.json()["choices"][0]["logprobs"]["top_logprobs"]
        if position >= len(tops):
            return None
        first, second, *_ = [*sorted(tops[position].values(), reverse=True), float("-inf")]
        return float(first - second)


def http_client(url: str, own: bool) -> httpx.AsyncClient:
    """A client for a server; `own` ones are on this machine, so no proxy or key of the environment applies."""
    key = None if own else os.environ.get("OPENAI_API_KEY")
    return httpx.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=httpx.Timeout(READ_TIMEOUT_S, connect=30),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        trust_env=not own,
    )


def _address(client: httpx.AsyncClient) -> str:
    return str(client.base_url).rstrip("/")


async def optional_json(client: httpx.AsyncClient, path: str) -> dict[str, Any]:
    """The object that a path answers with; {} where it is not there or something else."""
    answer = await client.get(path)
    if not answer.is_success:
        return {}
    try:
        value = answer.json()
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _message(body: bytes) -> str:
    """The message of an error body, else its beginning; one line."""
    try:
        error = json.loads(body)["error"]
        text = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, LookupError, TypeError):
        text = body.decode("utf-8", errors="replace")
    return " ".join(text.split())[:500]


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
