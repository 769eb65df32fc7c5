"""Log lines for people (`text`) or collectors (`json`), of this package and of uvicorn; vLLM has its own.

Whatever a client wrote into a line stays in it: no character begins another line or is obeyed by a terminal.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from typing import Any, Literal

_BARE = re.compile(r"[^\s\"'=\\]+")
"""Text that is read as one value without quotes."""


class JsonLines(logging.Formatter):
    """One JSON object a line; a record's `fields` become its keys."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """One line, behind which a record's `fields` stand as name=value; only a traceback has lines of its own."""

    def __init__(self) -> None:
        super().__init__("%(levelname)s:     %(asctime)s %(name)s: %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's name)
        fields = getattr(record, "fields", {})
        words = [printable(record.message), *(f"{name}={_value(value)}" for name, value in fields.items())]
        record.message = " ".join(words)
        return super().formatMessage(record)


def printable(text: str) -> str:
    """The text with what does not print, line ends among it, written as Python writes it."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _value(value: object) -> str:
    """A bare word where that is read unmistakably, else quoted."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return ",".join(f"{key}:{each}" for key, each in value.items())
    text = str(value)
    return text if _BARE.fullmatch(text) and text.isprintable() else repr(text)


def event(log: logging.Logger, what: str, fields: dict[str, Any]) -> None:
    """A line with fields; those that are None have no place in it."""
    log.info(what, extra={"fields": {name: value for name, value in fields.items() if value is not None}})


def lost(lines: int) -> bytes:
    """The line, in the form of all others, in place of so many that nobody read in time."""
    fields: dict[str, Any] = {"lines": lines}
    record = logging.makeLogRecord(
        {
            "name": "app.logs",
            "levelno": logging.WARNING,
            "levelname": "WARNING",
            "msg": "lines are missing here, since nobody read them",
            "fields": fields,
        }
    )
    handlers = logging.getLogger("app").handlers
    formatter = handlers[0].formatter if handlers else None
    return f"{(formatter or TextLines()).format(record)}\n".encode()


def configure(form: Literal["text", "json"]) -> None:
    """Sets up the `app` logger, once per process; with `json`, uvicorn's lines become objects too. uvicorn's access log
    ends, as by its `--no-access-log`: each request has its line here, with more in it.
    """
    logger = logging.getLogger("app")
    if not logger.handlers:
        logger.addHandler(logging.StreamHandler(sys.stderr))
        logger.propagate = False
        logger.setLevel(logging.INFO)
    logger.handlers[0].setFormatter(JsonLines() if form == "json" else TextLines())
    access = logging.getLogger("uvicorn.access")
    access.handlers.clear()
    access.propagate = False
    if form == "json":
        for name in ("uvicorn", "uvicorn.error"):
            for handler in logging.getLogger(name).handlers:
                handler.setFormatter(JsonLines())
