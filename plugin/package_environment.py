"""The environment in which this package's own modules are started as programs."""

import os
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]


def package_environment() -> dict[str, str]:
    """This process's environment, with our packages importable from any folder."""
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path}
