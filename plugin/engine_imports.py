"""What an engine's process imports, for the fork server: no device is touched and no thread started here."""

import atexit
import os
from contextlib import suppress

from plugin import engine_process, quiet_logs

engine_process.leave_group()  # its end would be taken for that of all that were forked out of it
quiet_logs.hide()

with suppress(ImportError):
    import setproctitle

    # It finds the place of the title by the environment that a process begins with, which `EngineProcess` replaces:
    # vLLM could not name its processes.
    setproctitle.getproctitle()

import vllm.v1.engine.core  # noqa: E402, F401

# The fork server has nothing to clean up when the front end is gone, and with vLLM's modules Python takes seconds.
atexit.register(os._exit, 0)
