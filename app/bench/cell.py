"""One cell of the grid, arm x prompt set x concurrency, and its numbers as they are kept and reported."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from app.bench.arithmetic import milliseconds, ratio, spread_ms
from app.bench.arms import Arm
from app.bench.client import Sampling, Target
from app.bench.counters import acceptance_between
from app.bench.load import Load
from app.bench.prompts import PromptSet
from app.bench.reply import Reply, causes
from app.bench.servers import environment
from app.config.settings import PREFIX
from app.drafts.machine import versions

Tokenize = Callable[[str], Awaitable[int | None]]
_SHOWN_ERRORS = 3


@dataclass(frozen=True, slots=True)
class Cell:
    """What is measured together. `warmup` is the number of requests that are in no number; `batch` the most requests at
    once of the whole run, which the started server's batch is made for (None: this cell's concurrency).
    """

    arm: Arm
    prompts: PromptSet
    concurrency: int
    warmup: int
    sampling: Sampling
    batch: int | None = None

    @property
    def slug(self) -> str:
        """The cell's file name without suffix."""
        return f"{self.arm.slug}.{self.prompts.name}.c{self.concurrency}"

    @property
    def key(self) -> str:
        """Equal only when a measurement may stand for this cell: everything that it depends on, hashed."""
        parts = {
            "arm": self.arm.identity(),
            "settings": self._settings(),
            "versions": versions(),
            "prompts": self.prompts.sha256,
            "set": self.prompts.name,
            "concurrency": self.concurrency,
            "warmup": self.warmup,
            "sampling": asdict(self.sampling),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def _settings(self) -> dict[str, str]:
        """The T5GEMMA_* variables that the arm's server is started with, empty meaning unset; none of a server that
        runs already, which does not see them.
        """
        if self.arm.url is not None:
            return {}
        variables = environment(self.arm, self.batch or self.concurrency)
        return {name: value for name, value in variables.items() if name.startswith(PREFIX) and value}


async def numbers(
    cell: Cell,
    load: Load,
    target: Target,
    tokenize: Tokenize,
    estimate: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The cell's record, JSON-ready. Rates and times are of completed requests; times in milliseconds.

    `estimate` is what the server itself says of its draft's worth. `token_source` says where token counts come from:
    `usage` of the answers, else `token_ids`, else `retokenised` text, which may differ from what was generated; null
    when they are not known. `partial` means that not every prompt was sent, or that the server was lost before its
    counters were read. `failures` counts by cause, `finish_reasons` what ended the completed ones, and `requests` has a
    row for every request.
    """
    replies = [reply for reply in load.replies if reply is not None]
    good = [reply for reply in replies if reply.cause is None]
    source, counts = await _counts(good, tokenize)
    total = sum(counts) if source or not good else None
    seconds = load.seconds
    return {
        "key": cell.key,
        "partial": not load.whole,
        "arm": cell.arm.name,
        "family": target.drafts.get("family") or cell.arm.family,
        "k": "auto" if target.drafts.get("asked") == "auto" else target.drafts.get("k") or cell.arm.k,
        "model": target.model,
        "drafts": target.drafts,
        "server": target.version,
        "set": cell.prompts.name,
        "concurrency": cell.concurrency,
        "warmup": cell.warmup,
        "prompts": len(cell.prompts.prompts),
        "completed": len(good),
        "failed": len(replies) - len(good),
        "failures": causes(replies),
        "finish_reasons": dict(
            Counter(reply.finish_reason for reply in good if reply.finish_reason).most_common()
        ),
        "errors": sorted({reply.error for reply in replies if reply.error is not None})[:_SHOWN_ERRORS],
        "prompt_tokens": sum(reply.prompt_tokens or 0 for reply in good),
        "output_tokens": total,
        "token_source": source,
        "chunks": sum(len(reply.timing.chunks) for reply in good),
        "seconds": seconds,
        "output_tokens_per_s": ratio(total, seconds),
        "requests_per_s": ratio(len(good), seconds),
        "latency_ms": spread_ms(reply.timing.latency for reply in good),
        "ttft_ms": spread_ms(reply.timing.ttft for reply in good),
        "itl_ms": spread_ms(gap for reply in good for gap in reply.timing.itl),
        "tpot_ms": spread_ms(reply.timing.tpot(n) for reply, n in zip(good, counts, strict=True)),
        "acceptance": acceptance_between(load.before, load.after),
        "estimate": None if estimate is None else dict(estimate),
        "outputs": _outputs(load.replies),
        "requests": _requests(load, iter(counts if source else ())),
    }


def _requests(load: Load, tokens: Iterator[int]) -> list[dict[str, Any]]:
    """A row for each reply in the prompts' order; seconds are since the first measured request was sent. `tokens` are
    those of the completed ones.
    """
    return [
        {
            "prompt": number,
            "failure": reply.cause,
            "finish_reason": reply.finish_reason,
            "error": reply.error,
            "sent_s": reply.timing.sent - (load.began or 0.0),
            "over_s": (reply.timing.over or 0.0) - (load.began or 0.0),
            "ttft_ms": milliseconds(reply.timing.ttft),
            "latency_ms": milliseconds(reply.timing.latency),
            "prompt_tokens": reply.prompt_tokens,
            "output_tokens": next(tokens, None) if reply.cause is None else None,
            "chunks": len(reply.timing.chunks),
        }
        for number, reply in enumerate(load.replies)
        if reply is not None
    ]


async def _counts(good: list[Reply], tokenize: Tokenize) -> tuple[str | None, list[int]]:
    """Where the token counts come from, and the count of each reply; one source for all of them."""
    if not good:
        return None, []
    if all(reply.tokens is not None for reply in good):
        return "usage", [reply.tokens or 0 for reply in good]
    if all(reply.token_ids is not None for reply in good):
        return "token_ids", [len(reply.token_ids or ()) for reply in good]
    counts = [await tokenize(reply.text) for reply in good]
    if any(count is None for count in counts):
        return None, [0] * len(good)
    return "retokenised", [count or 0 for count in counts]


def _outputs(replies: list[Reply | None]) -> dict[str, Any]:
    """Each prompt's output for the comparison of arms, null where there is none; ids where all have them."""
    good = [reply if reply is not None and reply.cause is None else None for reply in replies]
    ids = all(reply.token_ids is not None for reply in good if reply is not None)
    values = [None if reply is None else (reply.token_ids if ids else reply.text) for reply in good]
    texts = [None if reply is None else reply.text for reply in good]
    return {"token_ids": values if ids else None, "texts": texts}
