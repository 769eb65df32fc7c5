"""`t5gemma2 top`: its flags. What it does is imported only when it runs."""

from __future__ import annotations

import argparse
from typing import Any

DEFAULT_URL = "http://127.0.0.1:8000"


def add_top(commands: Any) -> None:
    """Adds it to the subparsers of the command line."""
    parser = commands.add_parser("top", help="watch a running server's draft", allow_abbrev=False)
    parser.description = (
        "A server with keys is asked with the one in OPENAI_API_KEY. Exit code of --once 0: requests are served;"
        " 1: they are not, or the server cannot be asked."
    )
    add = parser.add_argument
    add(
        "url",
        nargs="?",
        default=DEFAULT_URL,
        metavar="URL",
        type=_address,
        help="server (default %(default)s)",
    )
    add("--once", action="store_true", help="one picture, of one interval, then the end")
    add("--json", action="store_true", help="JSON in place of pictures, an object a line (docs/metrics.md)")
    text = "seconds between two looks at the server (default %(default)g)"
    add("--interval", type=_seconds, default=2.0, metavar="S", help=text)
    parser.set_defaults(run=_run)


def _address(text: str) -> str:
    """An address as `t5gemma2 bench --url` takes it; the scheme may be left out."""
    url = text if "://" in text else f"http://{text}"
    scheme, _, rest = url.partition("://")
    if scheme not in ("http", "https") or not rest.strip("/"):
        raise argparse.ArgumentTypeError(f"{text!r} is no http:// or https:// address")
    return url.rstrip("/").removesuffix("/v1")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not within 0.1 ... 3600 seconds")
    return value


def _run(arguments: argparse.Namespace) -> None:
    from app.top.entry import top

    raise SystemExit(top(arguments))
