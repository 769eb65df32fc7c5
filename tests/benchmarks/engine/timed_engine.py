"""An engine that only keeps time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from benchmarks.engine import gaps
from benchmarks.engine.long_prompts import Engine


class TimedEngine(Engine):
    """A chunk every two milliseconds; a prompt that it had takes a quarter of the time of a new one. `bounds`: what it
    was told that a step may encode.
    """

    def __init__(self, *, can_be_set: bool = True) -> None:
        super().__init__(None, 0)
        self.seen: set[tuple[int, ...]] = set()
        self.bounds: list[int] = []
        self._can_be_set = can_be_set

    async def chunks(self, prompt: list[int], tokens: int) -> AsyncIterator[float]:
        new = tuple(prompt) not in self.seen
        self.seen.add(tuple(prompt))
        await asyncio.sleep(0.02 if new else 0.005)
        for _ in range(tokens):
            await asyncio.sleep(0.002)
            yield asyncio.get_running_loop().time()

    async def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if function is gaps.set_step_tokens:
            self.bounds.append(arguments[0])
            return self._can_be_set
        return 7 if function.__name__ == "_peak" else [0.0, 1.0, 3.0] if function is gaps.watched else None
