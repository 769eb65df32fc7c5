"""The end of what a loading thread has started: it cannot be interrupted, but its child processes can be taken away."""

from __future__ import annotations

import asyncio
import multiprocessing
import time

from plugin.engine_process import end_imports

LOADING_STOP_S = 2.0
"""Seconds that a half-loaded engine's processes get to end."""


async def end_children(loaded: asyncio.Event) -> None:
    """Makes loading fail, which sets `loaded`, or ends what is left of it."""
    deadline = time.monotonic() + LOADING_STOP_S
    told: set[int | None] = set()
    while time.monotonic() < deadline and not loaded.is_set():
        for child in multiprocessing.active_children():
            if child.pid not in told:  # each is a line in the log of an engine that hears it
                child.terminate()
                told.add(child.pid)
        await asyncio.sleep(0.1)
    for child in multiprocessing.active_children():
        child.kill()
    end_imports()
