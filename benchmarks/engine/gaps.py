"""What running streams feel of prompts that join them: gaps between their chunks, at the client and in the engine.

The engine's own are between the ends of its steps. A gap that the client has and the engine has not is the front end's
or the machine's; both are on one clock.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

STREAMS = 4
STREAM_TOKENS = 8000
EVERY_S = 1.0
"""From one joining prompt to the next."""
SHORT = 64
"""Tokens of a prompt whose encoding takes no time to speak of: what joining costs besides."""
WORST = 8


class Streams(Protocol):
    """What is asked of a started engine."""

    def prompt(self, length: int) -> list[int]:
        """Ids that no request had."""

    def chunks(self, prompt: list[int], tokens: int) -> AsyncIterator[float]:
        """When each chunk of an answer came."""

    async def first_token(self, prompt: list[int]) -> float:
        """Seconds to the first token of an answer of one."""

    async def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function of a worker says."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """Seconds between what came one after another; the longest with their end's, after a prompt was sent."""

    median: float
    worst: float
    longest: tuple[tuple[float, float | None], ...]

    @classmethod
    def of(cls, arrivals: Sequence[Sequence[float]], sent: Sequence[float]) -> Gaps:
        """From each stream's times of arrival, and when the prompts were sent."""
        gaps = [(b - a, b) for times in arrivals for a, b in itertools.pairwise(times)]
        longest = sorted(gaps, reverse=True)[:WORST]
        after = [min((at - when for when in sent if when <= at), default=None) for _, at in longest]
        found = tuple((gap, since) for (gap, _), since in zip(longest, after, strict=True))
        return cls(statistics.median(gap for gap, _ in gaps), longest[0][0], found)

    @property
    def ratio(self) -> float:
        """The worst over the median."""
        return self.worst / self.median


@dataclass(frozen=True, slots=True)
class Round:
    """Some seconds of streams with one kind of neighbours.

    Attributes:
        client: gaps between the chunks of each stream.
        engine: the same between the engine's steps; None where they cannot be watched.
        first_tokens: seconds to the first token of each joining prompt.
    """

    client: Gaps
    engine: Gaps | None
    first_tokens: tuple[float, ...]

    def __str__(self) -> str:
        def seen(gaps: Gaps) -> str:
            return f"median {1e3 * gaps.median:.2f} ms, worst {1e3 * gaps.worst:.2f} ({gaps.ratio:.2f} times)"

        longest = ", ".join(
            f"{1e3 * gap:.2f}" + ("" if since is None else f" ({1e3 * since:.0f} after)")
            for gap, since in self.client.longest
        )
        parts = [seen(self.client)]
        if self.engine is not None:
            parts.append(f"engine: {seen(self.engine)}")
        if self.first_tokens:
            parts.append(f"first token {1e3 * statistics.median(self.first_tokens):.0f} ms")
        return "; ".join([*parts, f"longest {longest}"])


@dataclass(frozen=True, slots=True)
class Joining:
    """Prompts that join, one every `EVERY_S`: of so many tokens, new ones or one and the same."""

    tokens: int
    new: bool = True


def kinds(long: int) -> dict[str, Joining | None]:
    """Neighbours by name: none; short prompts; a long one whose states are held; long ones."""
    return {
        "alone": None,
        "beside_short_prompts": Joining(SHORT),
        "beside_held_prompts": Joining(long, new=False),
        "beside_long_prompts": Joining(long),
    }


async def measure_round(engine: Streams, joining: Joining | None, seconds: float) -> Round:
    """Four streams for a while, with or without prompts that join."""
    arrivals: list[list[float]] = [[] for _ in range(STREAMS)]
    tasks: list[asyncio.Task[float]] = []

    async def stream(times: list[float]) -> None:
        chunks = engine.chunks(engine.prompt(32), STREAM_TOKENS)
        async for when in chunks:
            times.append(when)  # noqa: PERF401  another task reads them meanwhile

    prompts: list[list[int]] = []
    if joining is not None:
        prompts = [engine.prompt(joining.tokens) for _ in range(max(1, round(seconds / EVERY_S)))]
        if not joining.new:
            prompts = prompts[:1] * len(prompts)
            await engine.first_token(prompts[0])
    sent: list[float] = []
    streams = [asyncio.create_task(stream(times)) for times in arrivals]
    await asyncio.sleep(EVERY_S)  # their own admission
    for times in arrivals:
        times.clear()
    await engine.ask(watch)
    for prompt in prompts:
        sent.append(time.perf_counter())
        tasks.append(asyncio.create_task(engine.first_token(prompt)))
        await asyncio.sleep(EVERY_S)
    if not prompts:
        await asyncio.sleep(seconds)
    measured = [list(times) for times in arrivals]
    ends = await engine.ask(watched)
    first_tokens = await asyncio.gather(*tasks)
    for task in streams:
        task.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    return Round(
        Gaps.of(measured, sent), Gaps.of([ends], sent) if len(ends) > 1 else None, tuple(first_tokens)
    )


def _core() -> Any:
    """The engine core that has called the worker; None where the worker is a process of its own."""
    frame = sys._getframe()
    while (outer := frame.f_back) is not None:
        frame, owner = outer, outer.f_locals.get("self")
        if hasattr(owner, "scheduler") and hasattr(owner, "step_fn"):
            return owner
    return None


def watch(worker: Any) -> None:
    """Note when each of the engine's steps ends, until `watched`."""
    if (core := _core()) is None:
        return
    ends: list[float] = []
    step = vars(core).setdefault("_unwatched_step_fn", core.step_fn)

    def timed() -> Any:
        result = step()
        if result[0]:
            ends.append(time.perf_counter())
        return result

    core.step_fn, core._watched_ends = timed, ends


def watched(worker: Any) -> list[float]:
    """The ends of the steps since `watch`, which ends with it."""
    if (core := _core()) is None:
        return []
    core.step_fn = core._unwatched_step_fn
    ends: list[float] = core._watched_ends
    return ends


def set_step_tokens(worker: Any, tokens: int) -> bool:
    """Make this the bound of a step's encoder work beside running requests, as if the engine had been started with it.

    Passes stay captured as they are. Says whether it could.
    """
    if (core := _core()) is None:
        return False
    given = core.vllm_config.ec_manager_config.manager_config
    before = given["busy_step_tokens"]
    manager = core.scheduler.encoder_cache_manager
    given["busy_step_tokens"] = tokens
    made = type(manager).create_manager(cache_size=manager._step_tokens, vllm_config=core.vllm_config)
    given["busy_step_tokens"] = before
    made._costs._captured = manager._costs._captured
    manager._busy_step_tokens, manager._costs = made._busy_step_tokens, made._costs
    return True
