"""The end of what a loading thread has started: it cannot be interrupted, but its child processes can be taken away."""

from __future__ import annotations

import asyncio
import multiprocessing
import time

LOADING_STOP_S = 5.0
"""Seconds that a half-loaded engine's processes get to end."""


async def end_children(loaded: asyncio.Event) -> None:
    """Makes loading fail, which sets `loaded`, or ends what is left of it."""
    deadline = time.monotonic() + LOADING_STOP_S
    while time.monotonic() < deadline and not loaded.is_set():
        for child in multiprocessing.active_children():
            child.terminate()
        await asyncio.sleep(0.1)
    for child in multiprocessing.active_children():
        child.kill()
