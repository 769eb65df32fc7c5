"""Log lines for people (`text`) or collectors (`json`), of this package only: uvicorn and vLLM have their own."""

from __future__ import annotations

import json
import logging
import sys
from typing import Literal


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
        return json.dumps(line, ensure_ascii=False, default=str)


def configure(form: Literal["text", "json"]) -> None:
    """Sets up the `app` logger, once per process; with `json`, uvicorn's lines become objects too."""
    logger = logging.getLogger("app")
    if not logger.handlers:
        logger.addHandler(logging.StreamHandler(sys.stderr))
        logger.propagate = False
        logger.setLevel(logging.INFO)
    plain = logging.Formatter("%(levelname)s:     %(asctime)s %(name)s: %(message)s", "%H:%M:%S")
    logger.handlers[0].setFormatter(JsonLines() if form == "json" else plain)
    if form == "json":
        for name in ("uvicorn", "uvicorn.access", "uvicorn.error"):
            for handler in logging.getLogger(name).handlers:
                handler.setFormatter(JsonLines())
