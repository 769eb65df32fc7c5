"""The gateway. `uvicorn app:main` serves; importing this package starts nothing and reads no settings.

`main` is made on first use, so that `app.cli` and the benchmark client can be imported without a checkpoint. There is
no submodule of that name, which would shadow it.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any

import plugin

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["main"]


def _refuse_another_plugin() -> None:
    """`plugin` is a name that others use, too: a folder or file of that name earlier on the path hides ours.

    Raises:
        ImportError: it does; both places are named.
    """
    expected = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    found = plugin.__file__ or next(iter(plugin.__path__))
    if os.path.dirname(os.path.realpath(found)) != os.path.join(expected, "plugin"):
        raise ImportError(
            f"`plugin` was imported from {found}, which hides t5gemma2-serving's own in {expected};"
            " start elsewhere, or take the other one off PYTHONPATH",
            name="plugin",
            path=found,
        )


_refuse_another_plugin()


def __getattr__(name: str) -> Any:
    if name != "main":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()["main"] = application = _build()
    return application


def _build() -> FastAPI:
    """The ASGI application for this environment; what is wrong ends the process with one line."""
    from app.logs import lost
    from app.process import uvicorn_command
    from app.process.output import relay_output

    relay_output(lost)
    uvicorn_command.refuse_workers()
    uvicorn_command.refuse_address()
    _count_in_memory()
    from app.config.environment import load_settings, refuse_other_plugins, service_variables
    from app.config.settings import SettingsError
    from plugin.drafts.checkpoint import CheckpointError, resolve

    try:
        refuse_other_plugins()
        asked = load_settings()
        k = None if asked.k == "auto" else asked.k
        found = resolve(asked.model, asked.draft, asked.verifier, k, asked.checkpoints_dir)
        from app.factory import create_app

        application = create_app(asked, found)
    except (SettingsError, CheckpointError) as error:
        raise SystemExit(f"t5gemma2: {error}") from None
    if names := service_variables():
        text = "%s: no settings, but what Kubernetes or Docker tells of a service; ignored"
        logging.getLogger("app").warning(text, ", ".join(names))
    return application


def _count_in_memory() -> None:
    """One process serves, so its metrics stay in its memory: files shared between processes would begin with the counts
    of former runs and of other servers. prometheus_client decides this when it is imported, thus before it is; not when
    `app` is, which `vllm serve` imports too.
    """
    for name in ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"):
        if (folder := os.environ.pop(name, None)) is not None:
            print(f"t5gemma2: {name}={folder} is ignored: one process serves here", file=sys.stderr)
