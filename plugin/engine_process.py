"""The engine's processes: their imports begin before the front end's own have ended, and they end with it.

vLLM starts its engine core with the method "spawn" once the front end has read the whole configuration: a new
interpreter, which then imports torch and vLLM for as long as the front end just did; with data parallelism a
coordinator before it and a worker after it do the same, one after the other. Here Python's own fork server does so
once, meanwhile, and all of them are forked out of it: a process that has imported everything and has neither threads
nor a device. Unnecessary once vLLM takes the start method "forkserver".
"""

import logging
import multiprocessing
import os
import signal
import threading
import time
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.forkserver import ensure_running

METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
IMPORTS = "plugin.engine_imports"
GRACE_S = 3.0
"""Until a process that does not end by SIGTERM, because it still loads, is ended."""

log = logging.getLogger("plugin.engine_process")

_watched = False
_libraries: tuple[str | None] | None = None
"""What the fork server was started with in `LD_PRELOAD`, which acts at the start of a program; None: not started."""


class EngineProcess(ForkServerProcess):
    """Has the environment of its own start, as a spawned process has, instead of the fork server's."""

    def start(self) -> None:
        self._environment = dict(os.environ)
        super().start()

    def run(self) -> None:
        global _libraries
        threads = os.environ.get("OMP_NUM_THREADS")
        os.environ.clear()
        os.environ.update(self._environment)
        _libraries = _preloaded()  # for the processes that this one starts
        if (wanted := os.environ.get("OMP_NUM_THREADS", "")) != threads and wanted.isdigit():
            import torch

            torch.set_num_threads(int(wanted))  # OpenMP has read the fork server's
        end_with_parent()
        super().run()


class EngineContext(ForkServerContext):
    Process = EngineProcess


def import_ahead() -> None:
    """Begin the engine's imports in the fork server; returns at once. What libraries read from the environment when
    they are loaded must be set by now. Nothing happens where the user has chosen a start method.
    """
    global _libraries
    if METHOD in os.environ:
        return
    os.environ[METHOD] = "spawn"  # whatever else vLLM starts: a process with threads must not be forked
    multiprocessing.set_forkserver_preload([IMPORTS])
    ensure_running()
    _libraries = _preloaded()


def end_imports() -> None:
    """End the fork server, which nothing will be forked out of any more: while it imports it hears of no end, and would
    outlive its starter by as long as that takes.
    """
    pid: int | None = ensure_running.__self__._forkserver_pid  # type: ignore[attr-defined]
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def context() -> ForkServerContext | None:
    """Of the fork server; None where none was started, or where a program of its own must load other libraries."""
    return EngineContext() if _libraries == _preloaded() else None


def leave_group() -> None:
    """What a terminal or a supervisor tells all processes of a group (Ctrl-C, a terminal that closes) does not reach
    this one any more: the front end lets the running requests end and its engine after them, whereas vLLM's engine
    core would end at once, with all its requests. Unnecessary once vLLM leaves that to its front end.
    """
    with suppress(PermissionError):  # of a session of its own it is the first, and alone
        os.setpgid(0, 0)


def end_with_parent() -> None:
    """From now on this process ends soon after the one that started it: vLLM's engine core waits for requests for ever
    when its front end is killed, and holds its memory and its device. Nothing happens in a process that
    `multiprocessing` has not started. Idempotent. Unnecessary once vLLM watches for that itself, as its workers do.
    """
    global _watched
    parent = multiprocessing.parent_process()
    if parent is None or _watched:
        return
    _watched = True
    leave_group()
    threading.Thread(target=_watch, args=(parent.sentinel,), name="end-with-parent", daemon=True).start()


def _watch(sentinel: int) -> None:
    wait([sentinel])
    log.error("the process that started this one is gone: ending")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(1)


def _preloaded() -> tuple[str | None]:
    return (os.environ.get("LD_PRELOAD"),)
