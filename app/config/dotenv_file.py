"""A `.env` file read line by line, so that what cannot be read is refused by its line instead of passed over.

python-dotenv, whose grammar and values these are, logs what it does not understand and goes on; a setting would then
silently have its default.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Final, NamedTuple

from dotenv import dotenv_values
from dotenv.parser import parse_stream

from app.config.settings import PREFIX, SettingsError

ENCODING: Final = "utf-8-sig"
"""UTF-8, with or without the mark that some editors put before the first name."""


class Assigned(NamedTuple):
    """A name's value, and the file and line that set it last."""

    value: str
    place: str


def read(path: Path | str) -> dict[str, Assigned]:
    """Names and values of the file; empty where there is none. Of two lines with the same name the last one counts.

    Raises:
        SettingsError: the file cannot be read, or a line is no assignment; never more of it than its first word is
            shown, since it may hold a key.
    """
    if not (file := Path(path)).is_file():
        return {}
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    try:
        text = raw.decode(ENCODING)
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}, line {_line(raw[: error.start])}: not UTF-8") from None
    if (at := raw.find(0)) >= 0:
        raise SettingsError(f"{path}, line {_line(raw[:at])}: a NUL character")
    values = dotenv_values(stream=io.StringIO(text))
    found: dict[str, Assigned] = {}
    for binding in parse_stream(io.StringIO(text)):
        line = binding.original.string
        number = binding.original.line + len(line[: len(line) - len(line.lstrip())].splitlines())
        if binding.error or (binding.key is not None and binding.value is None):
            word = re.match(r"\W*(\w{0,40})", line)
            raise SettingsError(f"{path}, line {number}: not NAME=value: {word[1] if word else ''} ...")
        if binding.key is not None:
            value, place = values[binding.key] or "", f"{path}, line {number}"
            if binding.key.upper().startswith(PREFIX) and re.search(r"[\x00-\x1f\x7f]", value):
                raise SettingsError(f"{place}: the value of {binding.key} has control characters")
            found[binding.key] = Assigned(value, place)
    return found


def _line(before: bytes) -> int:
    return before.count(b"\n") + 1
