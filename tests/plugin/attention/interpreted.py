"""Runs a module of kernel cases under Triton's interpreter, in a process of its own.

The interpreter must be chosen before Triton is first imported, and the test process must not see Triton in that mode.
"""

import json
import os
import subprocess
import sys
from typing import Any


def interpreted_errors(module: str) -> Any:
    """The JSON that `python -m module` prints."""
    done = subprocess.run(
        [sys.executable, "-m", module],
        env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)
