"""What an engine's process imports, for the fork server: no device is touched and no thread started here."""

import atexit
import os

from plugin import quiet_logs

quiet_logs.hide()

import vllm.v1.engine.core  # noqa: E402, F401

# The fork server has nothing to clean up when the front end is gone, and with vLLM's modules Python takes seconds.
atexit.register(os._exit, 0)
