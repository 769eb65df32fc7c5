"""Answers by a server that runs: the gateway, or `vllm serve`, with the verifier alone or with a draft."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Final

import httpx

from plugin.training.data.pairs import DataError

logger = logging.getLogger(__name__)

AT_ONCE: Final = 32
_TIMEOUT_S: Final = 600.0
_TRIES: Final = 8
_CHECKED: Final = 4
_OWN, _OTHERS = 0.95, 0.5
"""Share of likeliest tokens below which there is doubt, and below which there is none."""
_BUSY: Final = frozenset({429, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class ServerAnswers:
    """`Answers` by the server at `url`, asked `at_once` at a time; a busy one is asked again. A key comes from
    `OPENAI_API_KEY`. `greedy_share` tells of a prompt and an answer which share of the answer's tokens are the
    verifier's likeliest: whether the server serves that verifier is seen in its first answers.
    """

    url: str
    greedy_share: Callable[[list[int], list[int]], float]
    at_once: int = AT_ONCE

    def __call__(self, prompts: Sequence[list[int]], max_new_tokens: int) -> Iterator[tuple[int, list[int]]]:
        """Raises `DataError` naming the address: no server, no token ids in its answers, answers of another verifier,
        or a prompt that it refuses.
        """
        key = os.environ.get("OPENAI_API_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        base = self.url.rstrip("/").removesuffix("/v1")
        limits = httpx.Limits(max_connections=None)
        with httpx.Client(base_url=base, headers=headers, timeout=_TIMEOUT_S, limits=limits) as client:
            model = self._model(client)
            logger.info("%s: asking %s for %d responses", self.url, model, len(prompts))
            body = {"model": model, "max_tokens": max_new_tokens, "temperature": 0, "return_token_ids": True}
            waiting, shares = iter(enumerate(prompts)), list[float]()
            with ThreadPoolExecutor(self.at_once) as pool:
                running = {
                    pool.submit(self._answer, client, {**body, "prompt": prompt}): number
                    for number, prompt in _first(waiting, self.at_once)
                }
                while running:
                    ended, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in ended:
                        number, response = running.pop(future), future.result()
                        if len(shares) < _CHECKED:
                            shares.append(self.greedy_share(prompts[number], response))
                            self._check(shares)
                        yield number, response
                        for number, prompt in _first(waiting, 1):
                            running[pool.submit(self._answer, client, {**body, "prompt": prompt})] = number

    def _check(self, shares: Sequence[float]) -> None:
        if len(shares) < _CHECKED:
            return
        share = sum(shares) / len(shares)
        words = f"{self.url}: {share:.0%} of the first answers' tokens are this verifier's likeliest"
        if share < _OTHERS:
            raise DataError(f"{words}; it serves another one")
        if share < _OWN:
            logger.warning("%s; does it serve the same weights, and no penalties?", words)

    def _model(self, client: httpx.Client) -> str:
        try:
            reply = client.get("/v1/models")
            reply.raise_for_status()
            return str(reply.json()["data"][0]["id"])
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise DataError(f"{self.url}: no server that answers: {error}") from None

    def _answer(self, client: httpx.Client, body: dict[str, Any]) -> list[int]:
        words = ""
        for number in range(_TRIES):
            if number:
                time.sleep(min(2.0**number, 30.0) / 4)
            try:
                reply = client.post("/v1/completions", json=body)
            except httpx.TransportError as error:
                words = f"{type(error).__name__}: {error}"
                continue
            if reply.status_code in _BUSY:
                words = f"{reply.status_code}: {reply.text[:200]}"
                continue
            if not reply.is_success:
                raise DataError(f"{self.url}: {reply.status_code}: {' '.join(reply.text.split())[:300]}")
            ids = reply.json()["choices"][0].get("token_ids")
            if not isinstance(ids, list):
                raise DataError(f"{self.url}: gives no token ids; is it vLLM or the gateway?")
            return ids
        raise DataError(f"{self.url}: no answer after {_TRIES} tries: {' '.join(words.split())}")


def _first(waiting: Iterator[tuple[int, list[int]]], count: int) -> Iterator[tuple[int, list[int]]]:
    for _, item in zip(range(count), waiting, strict=False):
        yield item
