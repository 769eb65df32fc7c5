"""vLLM's engine process ends when the process that started it is gone.

vLLM 0.32 ends its engine by telling it so. A front end that was killed (out of memory, `kill -9`) tells nothing: its
engine lives on for ever, with the GPU's memory, and the server that a supervisor starts next finds none. Unnecessary
once vLLM's engine watches its parent, as its workers watch the engine. Linux's own `PR_SET_PDEATHSIG` does not do: it
fires when the thread ends that started the process, which with the gateway is the one that loads.
"""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.process
import os
import signal
import threading
import time

GRACE_S = 10.0
"""Seconds for vLLM's own way of ending, after which the process ends without."""
_ENGINE = "EngineCore"

log = logging.getLogger("plugin")
_watched = False


def end_with_parent() -> None:
    """In an engine process of vLLM: begins to wait for its parent's end, in a thread. Elsewhere nothing."""
    parent = multiprocessing.parent_process()
    if parent is not None and multiprocessing.current_process().name.startswith(_ENGINE):
        watch(parent)


def watch(parent: multiprocessing.process.BaseProcess) -> None:
    """In any process. Begins once."""
    global _watched
    if not _watched:
        _watched = True
        threading.Thread(target=_wait, args=(parent,), name="parent-watch", daemon=True).start()


def _wait(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    log.error("the server's process %d is gone; its engine ends", parent.pid)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(1)
