"""The `t5gemma2` command: `t5gemma2 serve --draft ./my-draft --k 3 --port 8000`, `bench`, `check`, `top`,
`train`.

Every setting has a flag made from `app.config.settings`, so flag and variable can never disagree; keys have none, since
other users of the machine can read a command line.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from app.bench.command import add_commands
from app.config.settings import Settings, variable
from app.config.settings_reference import default_of, type_of
from app.process.uvicorn_command import check_address
from app.top.command import add_top
from plugin.training.command import add_train

_NO_FLAG = {"api_keys"}
LOG_LEVELS = ("critical", "error", "warning", "info", "debug", "trace")
"""uvicorn's, which imports too much to be asked here."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line; exits 2 on wrong usage, 1 on wrong settings or checkpoints."""
    words = sys.argv[1:] if argv is None else argv
    parser = _parser()
    if not words:
        parser.print_help(sys.stderr)
        raise SystemExit(2)
    arguments = parser.parse_args(words)
    arguments.command = shlex.join(["t5gemma2", *words])
    arguments.run(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="t5gemma2", description="Serve T5Gemma 2 with speculative drafts.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {_version()}")
    commands = parser.add_subparsers(required=True, metavar="command")
    serve = commands.add_parser("serve", help="run the HTTP server", allow_abbrev=False)
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    serve.add_argument("--port", type=int, default=8000, help="port to listen on (default %(default)s)")
    serve.add_argument(
        "--log-level", default="info", choices=LOG_LEVELS, help="uvicorn's log level (default %(default)s)"
    )
    serve.add_argument(
        "--timeout-keep-alive",
        type=int,
        default=5,
        metavar="SECONDS",
        help="how long an idle connection is kept; longer than a proxy in front does (default %(default)s)",
    )
    group = serve.add_argument_group("settings", "each also an environment variable; the flag wins")
    for field, info in Settings.model_fields.items():
        if field not in _NO_FLAG:
            text = f"{info.description} ({type_of(info)}; default: {default_of(info)}) [{variable(field)}]"
            group.add_argument(
                f"--{field.replace('_', '-')}",
                dest=variable(field),
                metavar="VALUE",
                help=text.replace("%", "%%"),
            )
    serve.set_defaults(run=_serve)
    add_commands(commands)
    add_top(commands)
    add_train(commands)
    return parser


def _version() -> str:
    try:
        return version("t5gemma2-serving")
    except PackageNotFoundError:
        return "(not installed)"


def _serve(arguments: argparse.Namespace) -> None:
    from app.config.environment import FLAGS

    check_address(arguments.host, arguments.port)
    for field in Settings.model_fields:
        value = getattr(arguments, variable(field), None)
        if value is not None:
            os.environ[variable(field)] = value
            FLAGS.add(variable(field))
    import uvicorn

    uvicorn.run(
        "app:main",
        host=arguments.host,
        port=arguments.port,
        log_level=arguments.log_level,
        timeout_keep_alive=arguments.timeout_keep_alive,
        workers=1,
    )


if __name__ == "__main__":
    main()
