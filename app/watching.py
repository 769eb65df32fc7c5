"""Noticing that the engine died, also while nobody asks it for anything."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from app.engine import Engine, EngineDead
from app.errors import in_one_line

log = logging.getLogger("app.gateway")

POLL_S = 0.5


async def until_dead(engine: Engine, died: Callable[[str], None]) -> None:
    """Calls `died` with the reason once the engine is lost. Another failure of the question is logged, once while it
    stays the same, and no reason to ask no more: a dead engine that nobody notices is never replaced.
    """
    logged: str | None = None
    while True:
        try:
            await engine.check_health()
            logged = None
        except EngineDead as error:
            died(str(error))
            return
        except Exception as error:
            if logged != (logged := in_one_line(error)):
                log.error("the engine's health could not be asked: %s", logged, exc_info=error)
        await asyncio.sleep(POLL_S)
