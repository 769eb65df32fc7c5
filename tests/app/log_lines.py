"""What this package writes into its log while a test runs, in both forms."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from app.logs import JsonLines, TextLines


class Lines(logging.Handler):
    """Keeps every line, as text and as JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.json: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        # JSON first: the text's formatter writes into the record.
        self.json.append(JsonLines().format(record))
        self.text.append(TextLines().format(record))

    @property
    def all(self) -> str:
        """Everything at once."""
        return "\n".join([*self.text, *self.json])

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The lines of requests."""
        found = [json.loads(line) for line in self.json]
        return [line for line in found if line["message"] == "request"]

    def clear(self) -> None:
        self.text.clear()
        self.json.clear()


@contextmanager
def logged() -> Iterator[Lines]:
    """The lines of the block, from INFO on."""
    logger, lines = logging.getLogger("app"), Lines()
    level = logger.level
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(lines)
        logger.setLevel(level)
