"""The end of what a loading thread has started: it cannot be interrupted, but its child processes can be taken away."""

from __future__ import annotations

import asyncio
import multiprocessing
import time

import psutil

from plugin.engine_process import end_imports

LOADING_STOP_S = 2.0
"""Seconds that a half-loaded engine's processes get to end."""


MODEL_INSPECTION = "vllm.model_executor.models.registry"
"""The module that vLLM runs as a program of its own, with nobody's handle to it, where it has not kept yet what kind of
model it is to load: on a machine's first start. It would go on for some seconds."""


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
    end_model_inspection()
    end_imports()


def end_model_inspection() -> None:
    """Ends vLLM's program, where it runs."""
    for child in psutil.Process().children():
        try:
            if MODEL_INSPECTION in child.cmdline():
                child.kill()
        except psutil.Error:  # it has ended by itself
            continue
