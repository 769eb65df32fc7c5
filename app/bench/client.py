"""One server as the benchmark sees it: which model it serves, and how it streams a completion."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from app.bench.arithmetic import ChunkTimes
from app.bench.errors import BenchError, ServerLost
from app.bench.json_schema import response_format
from app.bench.reply import CONNECTION, NOT_UNDERSTOOD, TIMED_OUT, Reply, message
from app.bench.sse import DONE, EventParser

REQUEST_TIMEOUT_S = 600.0
"""Seconds that a request may take as a whole."""
_CONNECT_TIMEOUT_S = 30.0
_LOST_AFTER, _LOST_POLL_S = 3, 1.0
"""So many looks, and seconds between them, until a server that does not answer counts as lost."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """What every request asks for; always greedy, since outputs of two arms must be comparable. `json_schema` is what
    answers are held to, as JSON.
    """

    max_tokens: int = 128
    seed: int = 0
    ignore_eos: bool = False
    json_schema: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A server that answers: its first model, and what it says of itself ({} where it says nothing). A request that has
    not ended after `timeout_s` seconds has failed.
    """

    client: httpx.AsyncClient
    model: str
    gives_ids: bool
    drafts: dict[str, Any] = field(default_factory=dict)
    version: dict[str, Any] = field(default_factory=dict)
    timeout_s: float = REQUEST_TIMEOUT_S

    @classmethod
    async def find(
        cls, client: httpx.AsyncClient, prompt: str, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> Target:
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
        target = cls(client, model, True, drafts, version, timeout_s)
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
        if sampling.json_schema is not None:
            body["response_format"] = response_format(sampling.json_schema)
        return body

    async def complete(self, prompt: str | list[int], sampling: Sampling) -> Reply:
        """One streamed completion; what goes wrong is in the reply."""
        clock = asyncio.get_running_loop().time
        reply, done = Reply(ChunkTimes(clock())), False
        try:
            async with asyncio.timeout(self.timeout_s):
                done = await self._stream(self.body(prompt, sampling), reply)
        except (TimeoutError, httpx.TimeoutException):
            reply.fail(TIMED_OUT, f"no end after {clock() - reply.timing.sent:.0f} s (--timeout)")
        except httpx.TransportError as error:
            reply.fail(CONNECTION, _words(error))
        except (httpx.HTTPError, ValueError, TypeError, LookupError) as error:
            reply.fail(NOT_UNDERSTOOD, _words(error))
        reply.end(done, clock())
        return reply

    async def _stream(self, body: dict[str, Any], reply: Reply) -> bool:
        """Fills `reply` from the server's answer; whether the answer came to its end."""
        done, clock = False, asyncio.get_running_loop().time
        timeout = httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S)
        async with self.client.stream("POST", "/v1/completions", json=body, timeout=timeout) as response:
            if not response.is_success:
                status, words = response.status_code, message(await response.aread())
                reply.fail(f"HTTP {status}", f"{status}: {words}")
                return False
            parser = EventParser()
            async for portion in response.aiter_bytes():
                now = clock()
                for event in parser.feed(portion):
                    if event == DONE:
                        done = True
                    else:
                        reply.take(event, now)
        return done

    async def confirm(self) -> None:
        """Returns when the server still answers; one without /health, which answers 404, does.

        Raises:
            ServerLost: it cannot be reached, or says of itself that it is not healthy, a few times over.
        """
        words = ""
        for look in range(_LOST_AFTER):
            if look:
                await asyncio.sleep(_LOST_POLL_S)
            try:
                status = (await self.client.get("/health", timeout=self.timeout_s)).status_code
            except httpx.HTTPError as error:
                words = _words(error)
            else:
                if status < httpx.codes.INTERNAL_SERVER_ERROR:
                    return
                words = f"/health answers {status}"
        raise ServerLost(f"{_address(self.client)}: the server was lost: {words}")

    async def whole(self, prompt: str | list[int], sampling: Sampling, **fields: Any) -> httpx.Response:
        """The answer to the same request in one piece, with `fields` besides."""
        body = self.body(prompt, sampling) | {"stream": False, **fields}
        del body["stream_options"]
        return await self.client.post("/v1/completions", json=body)

    async def count_tokens(self, text: str) -> int | None:
        """Tokens of a text by the server's own tokenizer; None when it does not tell, or not any more."""
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        try:
            answer = await self.client.post("/tokenize", json=body)
        except httpx.TransportError:
            return None
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
        timeout=httpx.Timeout(REQUEST_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S),
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


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
