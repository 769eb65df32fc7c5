"""What uvicorn was told by flag or variable, checked before anything is loaded: its workers, host and port.

uvicorn gives an application no access to this. Its command is click's, whose context is there while the application is
imported; in a worker of its supervisor there is none, but there the supervisor's own object stands on the call stack.
"""

from __future__ import annotations

import errno
import math
import os
import socket
import sys
import time
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    import uvicorn

WRONG_USAGE: Final = 2
_STARTUP_FAILURE: Final = 3
"""Exit code of a worker at which uvicorn's supervisor stops instead of starting it again; it then ends with 0."""
_SUPERVISOR_READS_S: Final = 3.0
"""Seconds within which a supervisor has asked its worker for a sign of life: it does so every half second."""


def refuse_workers() -> None:
    """`uvicorn --workers 2` would start two engines on one GPU; data parallelism is the engine's own business."""
    if workers(sys.argv) <= 1:
        return
    print(
        "t5gemma2: more than one uvicorn worker would start one engine each on the same device;"
        " use one worker and T5GEMMA_DATA_PARALLEL_SIZE",
        file=sys.stderr,
        flush=True,
    )
    if (pipe := _to_supervisor()) is None:
        raise SystemExit(WRONG_USAGE)
    # The supervisor would end with 0, as if nothing were wrong. It reads what its workers send with pickle.
    pipe.send(_Exit())
    time.sleep(_SUPERVISOR_READS_S)
    raise SystemExit(_STARTUP_FAILURE)


def workers(argv: list[str]) -> int:
    """Workers that uvicorn's command line or environment asks for; 1 where it says nothing readable."""
    asked = os.environ.get("UVICORN_WORKERS") or os.environ.get("WEB_CONCURRENCY") or "1"
    for here, following in zip(argv, [*argv[1:], ""], strict=True):
        if here == "--workers":
            asked = following
        elif here.startswith("--workers="):
            asked = here.partition("=")[2]
    return int(asked) if asked.isdecimal() else 1


class _Exit:
    """Ends the process that unpickles it."""

    def __reduce__(self) -> tuple[Any, tuple[int]]:
        return sys.exit, (WRONG_USAGE,)


def _to_supervisor() -> Connection | None:
    """The pipe to uvicorn's supervisor, if this is one of its workers."""
    frame = sys._getframe()
    while frame := frame.f_back:  # type: ignore[assignment]
        pipe = getattr(frame.f_locals.get("self"), "child_conn", None)
        if isinstance(pipe, Connection):
            return pipe
    return None


def bound_shutdown(seconds: float) -> None:
    """Lets the uvicorn that runs this application end so long after its signal at the latest, unless it was told so by
    `--timeout-graceful-shutdown`. Else it waits for ever for a client that does not read its reply to the end.
    """
    config = running_config()
    if config is not None and config.timeout_graceful_shutdown is None:
        config.timeout_graceful_shutdown = math.ceil(seconds)


def running_config() -> uvicorn.Config | None:
    """Of the uvicorn that runs this application's lifespan, whose objects stand on the call stack there."""
    import uvicorn

    frame = sys._getframe()
    while frame := frame.f_back:  # type: ignore[assignment]
        config = getattr(frame.f_locals.get("self"), "config", None)
        if isinstance(config, uvicorn.Config):
            return config
    return None


def refuse_address() -> None:
    """The address of `uvicorn app:main` can be listened on. It is not known under another server or a supervisor,
    which has bound its socket already.
    """
    import click

    context = click.get_current_context(silent=True)
    given = context.params if context is not None else {}
    if "port" in given and given.get("uds") is None and given.get("fd") is None and not given.get("reload"):
        check_address(given["host"], given["port"])


def check_address(host: str, port: int) -> None:
    """Binds each address of the host for a moment, as the server will after the application is made; ends the process
    with one line where that fails.
    """
    if not 0 <= port <= 65535:
        print(f"t5gemma2: --port {port} is not within 0 ... 65535", file=sys.stderr)
        raise SystemExit(WRONG_USAGE)
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        hint = "; write an IPv6 address without brackets" if host.startswith("[") else ""
        _unusable(host, port, f"{getattr(error, 'strerror', None) or error}{hint}")
    absent = []
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(address)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                _unusable(host, port, error.strerror or str(error))
            absent.append(error)
    if len(absent) == len(found):  # a machine without IPv6 still has the other addresses of a name
        _unusable(host, port, absent[0].strerror or str(absent[0]))


def _unusable(host: str, port: int, why: str) -> NoReturn:
    raise SystemExit(f"t5gemma2: cannot listen on host {host}, port {port}: {why}")
