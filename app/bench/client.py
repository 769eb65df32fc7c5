"""One server as the benchmark sees it: which model it serves, and how it streams a completion."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from app.bench.arithmetic import Timing
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
    """What one request got. `tokens` is what the server's usage says, None when it says nothing; `token_ids`
    is None when the server gives no ids; `error` is None when the stream came to its end.
    """

    timing: Timing
    text: str = ""
    token_ids: list[int] | None = None
    tokens: int | None = None
    prompt_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None


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
            drafts, version = await _json(client, "/drafts"), await _json(client, "/version")
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

    def body(self, prompt: str, sampling: Sampling) -> dict[str, Any]:
        """The request that every arm gets."""
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

    async def complete(self, prompt: str, sampling: Sampling) -> Reply:
        """One streamed completion; what goes wrong is in the reply."""
        clock = asyncio.get_running_loop().time
        stream = _Stream(clock())
        try:
            request = self.client.stream("POST", "/v1/completions", json=self.body(prompt, sampling))
            async with request as response:
                if not response.is_success:
                    stream.error = f"{response.status_code}: {_message(await response.aread())}"
                    return stream.reply()
                parser = EventParser()
                async for portion in response.aiter_bytes():
                    now = clock()
                    for event in parser.feed(portion):
                        stream.take(event, now)
        except (httpx.HTTPError, ValueError, TypeError, LookupError) as error:
            stream.error = _words(error)
        return stream.reply()

    async def count_tokens(self, text: str) -> int | None:
        """Tokens of a text by the server's own tokenizer; None when it does not tell."""
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        answer = await self.client.post("/tokenize", json=body)
        return int(answer.json()["count"]) if answer.is_success else None

    async def top_two_gap(self, prompt: str, sampling: Sampling, position: int) -> float | None:
        """Logprob of the likeliest token minus that of the next, at one position of the greedy output; None
        when the server does not tell.
        """
        body = self.body(prompt, replace(sampling, max_tokens=position + 1))
        body |= {"stream": False, "logprobs": 2, "return_tokens_as_token_ids": True}
        del body["stream_options"]
        answer = await self.client.post("/v1/completions", json=body)
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


class _Stream:
    """Puts a reply together from its events."""

    def __init__(self, sent: float) -> None:
        self._sent = sent
        self._chunks: list[float] = []
        self._texts: list[str] = []
        self._ids: list[int] | None = []
        self._usage: dict[str, Any] = {}
        self._reason: str | None = None
        self._done = False
        self.error: str | None = None

    def take(self, event: str, now: float) -> None:
        if event == DONE:
            self._done = True
            return
        chunk = json.loads(event)
        if "error" in chunk:
            self.error = _message(event.encode())
            return
        self._usage = chunk.get("usage") or self._usage
        for choice in (chunk.get("choices") or [])[:1]:
            self._chunks.append(now)
            self._texts.append(choice.get("text") or "")
            self._reason = choice.get("finish_reason") or self._reason
            ids = choice.get("token_ids")
            # A chunk with text but no ids means that the server gives none; an empty last chunk does not.
            if ids is None and choice.get("text"):
                self._ids = None
            elif self._ids is not None:
                self._ids.extend(ids or [])

    def reply(self) -> Reply:
        if self.error is None and not self._done:
            self.error = "the stream ended without [DONE]"
        elif self.error is None and not self._chunks:
            self.error = "the stream had no output"
        tokens = self._usage.get("completion_tokens")
        text = "".join(self._texts)
        ids = self._ids if self._ids or not text else None
        return Reply(
            timing=Timing(self._sent, tuple(self._chunks)),
            text=text,
            token_ids=ids,
            tokens=tokens if isinstance(tokens, int) else None,
            prompt_tokens=self._usage.get("prompt_tokens"),
            finish_reason=self._reason,
            error=self.error,
        )


def _address(client: httpx.AsyncClient) -> str:
    return str(client.base_url).rstrip("/")


async def _json(client: httpx.AsyncClient, path: str) -> dict[str, Any]:
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
