"""What one request got: its output, when each part arrived, and, where it failed, the cause and the words.

A stream may hold comments, chunks without output (a role, a ping, usage) and a last chunk that only says why it ended.
Times are of output alone: a chunk counts when it brings text or token ids.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.bench.arithmetic import ChunkTimes

TIMED_OUT, CONNECTION, STREAM_ERROR = "timed out", "connection", "error in the stream"
NOT_DONE, NO_OUTPUT, NOT_UNDERSTOOD = "no [DONE]", "no output", "not understood"
"""Causes of failures; a status that is no success is one of its own, `HTTP 500`."""


@dataclass(slots=True)
class Reply:
    """`tokens` is what the server's usage says, None when it says nothing; `token_ids` is None when the server gives no
    ids; `cause` and `error` (its words) are None when the stream came to its end.
    """

    timing: ChunkTimes
    text: str = ""
    token_ids: list[int] | None = field(default_factory=list)
    tokens: int | None = None
    prompt_tokens: int | None = None
    cause: str | None = None
    error: str | None = None
    finish_reason: str | None = None

    def fail(self, cause: str, error: str | None = None) -> None:
        """Keeps the first failure."""
        if self.cause is None:
            self.cause, self.error = cause, error or cause

    @property
    def server_in_doubt(self) -> bool:
        """Whether the failure may mean that there is no server any more."""
        return self.cause == CONNECTION or (self.cause or "").startswith("HTTP 5")

    def take(self, event: str, now: float) -> None:
        """Adds what an event holds that arrived now."""
        chunk = json.loads(event)
        if "error" in chunk:
            self.fail(STREAM_ERROR, message(event.encode()))
            return
        if usage := chunk.get("usage"):
            tokens = usage.get("completion_tokens")
            self.tokens = tokens if isinstance(tokens, int) else None
            self.prompt_tokens = usage.get("prompt_tokens")
        for choice in (chunk.get("choices") or [])[:1]:
            text, ids = choice.get("text") or "", choice.get("token_ids")
            self.text += text
            if text or ids:
                self.timing.chunks.append(now)
            if choice.get("finish_reason") is not None:
                self.timing.finished, self.finish_reason = now, str(choice["finish_reason"])
            # A chunk with text but no ids means that the server gives none; an empty last chunk does not.
            if ids is None and text:
                self.token_ids = None
            elif self.token_ids is not None:
                self.token_ids.extend(ids or [])

    def end(self, done: bool, now: float) -> None:
        """Nothing follows after now; `done`: the server said so itself."""
        self.timing.over = now
        if self.timing.finished is not None and not self.timing.chunks and self.tokens:
            # An end token at once, from a server that gives no ids: one token, of which there is no text.
            self.timing.chunks.append(self.timing.finished)
        if not done:
            self.fail(NOT_DONE, "the stream ended without [DONE]")
        elif not self.timing.chunks:
            self.fail(NO_OUTPUT, "the stream had no output")
        if not self.token_ids and self.text:
            self.token_ids = None


def causes(replies: Iterable[Reply]) -> dict[str, int]:
    """How many failed by cause, the most frequent first."""
    return dict(Counter(reply.cause for reply in replies if reply.cause is not None).most_common())


def in_words(counts: Mapping[str, int]) -> str:
    """`3 × HTTP 500, 1 × no [DONE]`."""
    return ", ".join(f"{count} × {cause}" for cause, count in counts.items())


def message(body: bytes) -> str:
    """The message of an error body, else its beginning; one line."""
    try:
        error: Any = json.loads(body)["error"]
        text = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, LookupError, TypeError):
        text = body.decode("utf-8", errors="replace")
    return " ".join(text.split())[:500]
