"""vLLM's engine process ends when the process that started it is gone.

vLLM 0.32 ends its engine by telling it so. A front end that was killed (out of memory, `kill -9`) tells nothing: its
engine lives on for ever, with the GPU's memory, and the server that a supervisor starts next finds none. Unnecessary
once vLLM's engine watches its parent, as its workers watch the engine. Linux's own `PR_SET_PDEATHSIG` does not do: it
fires when the thread ends that started the process, which with the gateway is the one that loads.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time

GRACE_S = 10.0
"""Seconds for vLLM's own way of ending, after which the process ends without."""
_ENGINE = "EngineCore"

log = logging.getLogger("plugin")


def end_with_parent() -> None:
    """In an engine process of vLLM: begins to wait for its parent's end, in a thread. Elsewhere nothing."""
    if multiprocessing.parent_process() is not None and multiprocessing.current_process().name.startswith(
        _ENGINE
    ):
        threading.Thread(target=_wait, name="parent-watch", daemon=True).start()


def _wait() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    log.error("the server's process %d is gone; its engine ends", parent.pid)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(1)
