"""Pairs of prompt and response, and how the columns of a row become one."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from plugin.training.data.conversations import (
    Render,
    Turn,
    Which,
    plain_text,
    read_chat,
    read_turns,
    split_turns,
)

CONVERSATION_COLUMNS: Final = ("messages", "conversations")
OTHER_COLUMNS: Final = ("image", "images", "video", "videos", "audio", "audios")
"""What a conversation may come with beside its text; the verifier is served text alone."""
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


class DataError(ValueError):
    """Training data cannot be used; one line that names the place and what is wrong there."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt for the encoder and the response that the decoder learns; `id` is source and row, `mine.jsonl:17`."""

    prompt: str
    response: str
    id: str = ""


class Unusable(Exception):
    """A row is no pair, which is no error: it is skipped, and counted by this reason."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns of a row are prompt and response; one of three ways, or none of them.

    `prompt` and `response`: texts in which `{column}` stands for a column; prompts alone do where the verifier answers.
    `messages`: the column that holds a list of messages. `chat`: a text in which `{column}` stands for a column, and
    which reads `USER: ... ASSISTANT: ...`. Without any: a column `messages` or `conversations` if the row has it, else
    its columns `prompt` and `response`. A column that is null is absent: a dataset of rows of several shapes has all
    columns in every row. `turn` says which assistant turn of a conversation is the response. A column `system` beside
    the messages is the first turn of a conversation that has no such turn. Raises `DataError` for any other
    combination, and for a template with more than plain column names.
    """

    prompt: str | None = None
    response: str | None = None
    messages: str | None = None
    chat: str | None = None
    turn: Which = "last"

    def __post_init__(self) -> None:
        ways = [self.prompt, self.messages, self.chat]
        if sum(way is not None for way in ways) > 1 or (self.prompt is None and self.response is not None):
            raise DataError("columns: give prompt and response, or messages, or chat")
        if self.turn not in ("first", "last"):
            raise DataError(f"turn: {self.turn!r} is neither 'first' nor 'last'")
        for template in (self.prompt, self.response, self.chat):
            if template is not None:
                _names(template)

    def texts(
        self, row: Mapping[str, Any], render: Render = plain_text, prompts_alone: bool = False
    ) -> tuple[str, str]:
        """(prompt, response) of a row; `prompts_alone` needs no response and gives none.

        Raises `Unusable` for a row without a prompt or response, or with more than text, and `ValueError` naming the
        column that is missing or of a wrong type, or the text that has no encoding.
        """
        conversation = self.messages or _conversation_column(row)
        if self.prompt is not None:
            prompt = _filled(self.prompt, row)
            response = "" if prompts_alone else self._response(row)
        elif self.chat is not None or conversation is not None:
            prompt, response = self._of_turns(self._turns(row, conversation), row, render, prompts_alone)
        else:
            prompt = _text(row, "prompt")
            response = "" if prompts_alone else _text(row, "response")
        if not prompt.strip():
            raise Unusable("no prompt")
        if not response.strip() and not prompts_alone:
            raise Unusable("no response")
        for name, text in (("prompt", prompt), ("response", response)):
            if half := _SURROGATE.search(text):
                raise ValueError(f"{name}: half a surrogate pair, {half[0]!a}, at character {half.start()}")
        return prompt, response

    def converters(self) -> dict[str, str]:
        """How rows become pairs, as a profile says it; JSON-ready."""
        given = {name: getattr(self, name) for name in ("prompt", "response", "messages", "chat")}
        found = {name: value for name, value in given.items() if value is not None}
        return {**(found or {"columns": "messages, conversations or prompt and response"}), "turn": self.turn}

    def _response(self, row: Mapping[str, Any]) -> str:
        if self.response is None:
            raise ValueError("no template of a response; --responses verifier needs none")
        return _filled(self.response, row)

    def _of_turns(
        self, turns: list[Turn], row: Mapping[str, Any], render: Render, prompts_alone: bool
    ) -> tuple[str, str]:
        found = split_turns(turns, self.turn)
        if found is None:
            asked = [turn for turn in turns if turn.text]
            if not asked or asked[-1].role == "assistant":
                raise Unusable("no prompt")
            if not prompts_alone:
                raise Unusable("no response")
            found = turns, ""
        before, response = found
        others = [turn.other for turn in turns[: len(before) + 1] if turn.other is not None]
        others += [column for column in OTHER_COLUMNS if row.get(column)]
        if others:
            raise Unusable(f"with {others[0]}")
        return render(before), "" if prompts_alone else response

    def _turns(self, row: Mapping[str, Any], column: str | None) -> list[Turn]:
        if self.chat is not None:
            text = _filled(self.chat, row)
            try:
                return read_chat(text) if text else []
            except ValueError as error:
                raise ValueError(f"{self.chat}: {error}") from None
        assert column is not None
        try:
            turns = read_turns(_value(row, column) or [])
        except ValueError as error:
            raise ValueError(f"{column}: {error}") from None
        system = _text(row, "system").strip() if row.get("system") is not None else ""
        spoken = any(turn.role == "system" for turn in turns)
        return [Turn("system", system), *turns] if system and turns and not spoken else turns


def _conversation_column(row: Mapping[str, Any]) -> str | None:
    """The column of a conversation; one that is null only when there is nothing else in the row either."""
    found = [column for column in CONVERSATION_COLUMNS if column in row]
    held = [column for column in found if row[column] is not None]
    return next(iter(held or ([] if "prompt" in row else found)), None)


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
