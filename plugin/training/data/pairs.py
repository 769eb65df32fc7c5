"""Pairs of prompt and response, and how the columns of a row become one."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from plugin.training.data.conversations import Render, Which, read_chat, read_turns, split_turns

CONVERSATION_COLUMNS: Final = ("messages", "conversations")
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


class DataError(ValueError):
    """Training data cannot be used; one line that names the place and what is wrong there."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt for the encoder and the response that the decoder learns; `id` is source and row, `mine.jsonl:17`."""

    prompt: str
    response: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns of a row are prompt and response; one of three ways, or none of them.

    `prompt` and `response`: texts in which `{column}` stands for a column. `messages`: the column that holds a list of
    messages. `chat`: a text in which `{column}` stands for a column, and which reads `USER: ... ASSISTANT: ...`.
    Without any: a column `messages` or `conversations` if the row has it, else its columns `prompt` and `response`.
    `turn` says which assistant turn of a conversation is the response. Raises `DataError` for any other combination,
    and for a template with more than plain column names.
    """

    prompt: str | None = None
    response: str | None = None
    messages: str | None = None
    chat: str | None = None
    turn: Which = "last"

    def __post_init__(self) -> None:
        ways = [(self.prompt, self.response), (self.messages,), (self.chat,)]
        used = [way for way in ways if any(part is not None for part in way)]
        if len(used) > 1 or any(part is None for way in used for part in way):
            raise DataError("columns: give prompt and response, or messages, or chat")
        if self.turn not in ("first", "last"):
            raise DataError(f"turn: {self.turn!r} is neither 'first' nor 'last'")
        for template in (self.prompt, self.response, self.chat):
            if template is not None:
                _names(template)

    def texts(self, row: Mapping[str, Any], render: Render) -> tuple[str, str] | None:
        """(prompt, response) of a row, None where one of them is empty.

        Raises `ValueError` naming the column that is missing or of a wrong type, or the text that has no encoding.
        """
        if self.prompt is not None and self.response is not None:
            prompt, response = _filled(self.prompt, row), _filled(self.response, row)
        elif self.messages is not None or self.chat is not None or _conversation_column(row):
            found = split_turns(self._turns(row), self.turn)
            if found is None:
                return None
            prompt, response = render(found[0]), found[1]
        else:
            prompt, response = _text(row, "prompt"), _text(row, "response")
        if not prompt.strip() or not response.strip():
            return None
        for name, text in (("prompt", prompt), ("response", response)):
            if half := _SURROGATE.search(text):
                raise ValueError(f"{name}: half a surrogate pair, {half[0]!a}, at character {half.start()}")
        return prompt, response

    def _turns(self, row: Mapping[str, Any]) -> Any:
        if self.chat is not None:
            text = _filled(self.chat, row)
            try:
                return read_chat(text) if text else []
            except ValueError as error:
                raise ValueError(f"{self.chat}: {error}") from None
        column = self.messages or _conversation_column(row)
        assert column is not None
        try:
            return read_turns(_value(row, column))
        except ValueError as error:
            raise ValueError(f"{column}: {error}") from None


def _conversation_column(row: Mapping[str, Any]) -> str | None:
    return next((column for column in CONVERSATION_COLUMNS if column in row), None)


def _names(template: str) -> list[str]:
    """The columns of a template."""
    try:
        fields = [field for field in string.Formatter().parse(template) if field[1] is not None]
    except ValueError as error:
        raise DataError(f"template {template!r}: {error}") from None
    names = []
    for _, name, form, conversion in fields:
        if not name or form or conversion or set(name) & set(".["):
            raise DataError(f"template {template!r}: only {{column}} may stand in braces")
        names.append(name)
    if not names:
        raise DataError(f"template {template!r}: has no {{column}}")
    return names


def _filled(template: str, row: Mapping[str, Any]) -> str:
    """`template` with the row's values: texts as they are, nothing for null, anything else as JSON."""
    values = {}
    for name in _names(template):
        value = _value(row, name)
        text = "" if value is None else value
        values[name] = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
    return template.format_map(values).strip() if any(text.strip() for text in values.values()) else ""


def _text(row: Mapping[str, Any], column: str) -> str:
    value = _value(row, column)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{column}: {type(value).__name__} instead of text")
    return value


def _value(row: Mapping[str, Any], column: str) -> Any:
    if column not in row:
        raise ValueError(f"{column}: no such field, only {', '.join(map(str, row)) or 'none'}")
    return row[column]
