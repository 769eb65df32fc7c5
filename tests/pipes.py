"""Pipes that nobody reads."""

from __future__ import annotations

import os
from contextlib import suppress


def fill(writer: int) -> int:
    """Writes until the pipe takes no byte more, so that whoever writes next waits; returns how many it took."""
    os.set_blocking(writer, False)
    taken = 0
    for size in (4096, 1):
        with suppress(BlockingIOError):
            while True:
                taken += os.write(writer, b"-" * size)
    os.set_blocking(writer, True)
    return taken
