"""The settings in use, for the log at start: each with where it comes from, and without what is secret in it."""

from __future__ import annotations

import re
from typing import Any

from app.config.settings import Settings, variable

_USERINFO = re.compile(r"(?<=://)[^/\s@]+(?=@)")
"""Name and password in an address."""
_HIDDEN = "*" * 10
"""As pydantic writes a secret."""


def effective(settings: Settings) -> str:
    """`NAME=value (where from)` of what was set, then the defaults; what is unset is left out."""
    dumped = settings.model_dump(mode="json").items()
    values = {name: value for name, value in dumped if value is not None and value != []}
    given = {name: origin for name, origin in settings._origins.items() if name in values}
    parts = [f"{_told(name, values[name])} ({origin})" for name, origin in given.items()]
    parts += ["by default:"] if given else []
    return " ".join([*parts, *(_told(name, value) for name, value in values.items() if name not in given)])


def _told(name: str, value: Any) -> str:
    text = ",".join(value) if isinstance(value, list) else str(value)
    return f"{variable(name)}={_USERINFO.sub(_HIDDEN, text.lower() if isinstance(value, bool) else text)}"
