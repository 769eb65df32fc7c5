"""Short completions all the time, from several clients, while a test does something to what is behind the address."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from typing import Any, Self

import httpx

TOKENS = 20
CLIENTS = 8


@dataclass(frozen=True)
class Outcome:
    """One request: when it began and ended (`time.monotonic`), and how; `failure` is None for the right answer."""

    began: float
    ended: float
    stream: bool
    failure: str | None


class Load:
    """`with Load(url) as load:`; half of the clients ask for streams. `asked` is a prompt and its answer, the fake
    server's by default.
    """

    def __init__(
        self,
        url: str,
        pause_s: float = 0,
        asked: tuple[str, str] = ("Hi", "x" * TOKENS),
        max_tokens: int = TOKENS,
    ) -> None:
        self._url, self._pause_s, self._stop = url, pause_s, threading.Event()
        self._body = {"prompt": asked[0], "max_tokens": max_tokens, "temperature": 0}
        self._answer = asked[1]
        self.outcomes: list[Outcome] = []
        self._threads = [threading.Thread(target=self._run, args=(i % 2 == 0,)) for i in range(CLIENTS)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def failures(self) -> list[Outcome]:
        return [one for one in self.outcomes if one.failure is not None]

    def _run(self, stream: bool) -> None:
        with httpx.Client(base_url=self._url, timeout=60) as client:
            while not self._stop.wait(self._pause_s):
                began = time.monotonic()
                failure = _ask(client, self._body | {"stream": stream}, self._answer)
                self.outcomes.append(Outcome(began, time.monotonic(), stream, failure))


def _ask(client: httpx.Client, body: dict[str, Any], answer: str) -> str | None:
    try:
        reply = client.post("/v1/completions", json=body)
    except httpx.TransportError as error:
        return f"{type(error).__name__}: {error}"
    if reply.status_code != 200:
        return f"{reply.status_code}: {reply.text[:200]}"
    if body["stream"]:
        whole = reply.text.endswith("data: [DONE]\n\n") and _streamed(reply.text) == answer
    else:
        whole = reply.json()["choices"][0]["text"] == answer
    return None if whole else f"cut off: {reply.text[-200:]}"


def _streamed(events: str) -> str:
    """The text of a stream's events; an error event has none."""
    lines = [line.removeprefix("data: ") for line in events.splitlines() if line.startswith("data: {")]
    return "".join(choice["text"] for line in lines for choice in json.loads(line).get("choices", []))
