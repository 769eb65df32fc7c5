"""Noticing that the engine died or hangs, also while nobody asks it for anything."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from app.engine import Engine, EngineDead
from app.errors import in_one_line

log = logging.getLogger("app.gateway")

POLL_S = 0.5
ASKS_S = 5.0
"""Between an answer of the engine and the next question whether it still answers."""
_WAITS, _TENTH = 20, 2
"""Waits until an engine that does not answer counts as hung, and until it is worth telling."""


async def watch(
    engine: Engine, hang_timeout_s: float, responds: Callable[[bool], None], died: Callable[[str], None]
) -> None:
    """Both watches, until the engine is lost."""
    hang = asyncio.create_task(until_hung(engine, hang_timeout_s, responds, died))
    try:
        await until_dead(engine, died)
    finally:
        hang.cancel()


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


async def until_hung(
    engine: Engine, timeout_s: float, responds: Callable[[bool], None], died: Callable[[str], None]
) -> None:
    """Calls `died` once the engine has not answered for so many seconds; `responds` with False after a tenth of them,
    and with True when it answers again. An engine that is stuck in a step, or whose process is stopped, still lives.
    """
    while True:
        asked = asyncio.create_task(_responds(engine))
        try:
            for waits in range(1, _WAITS + 1):
                # Many short waits: a machine that slept, or a paused container, loses one of them.
                if (await asyncio.wait({asked}, timeout=timeout_s / _WAITS))[0]:
                    break
                if waits == _TENTH:
                    log.error("the engine has not answered for %g s: not ready until it does", timeout_s / 10)
                    responds(False)
            else:
                died(f"no answer for {timeout_s:g} s (T5GEMMA_HANG_TIMEOUT_S): it hangs")
                return
            if asked.result():
                responds(True)
        finally:
            asked.cancel()
        await asyncio.sleep(min(ASKS_S, timeout_s / _WAITS))


async def _responds(engine: Engine) -> bool:
    try:
        await engine.respond()
    except Exception:  # of a death the other watch tells
        return False
    return True
