"""Rows as pairs: every way to map columns, what is skipped, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from plugin.training.data.conversations import plain_text
from plugin.training.data.pairs import Columns, DataError

MESSAGES = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Bye"},
    {"role": "assistant", "content": "See you."},
]


def _texts(row: dict[str, Any], **columns: Any) -> tuple[str, str] | None:
    return Columns(**columns).texts(row, plain_text)


def test_prompt_and_response_are_taken_as_they_are() -> None:
    assert _texts({"prompt": " a ", "response": "b\n", "other": 1}) == (" a ", "b\n")


@pytest.mark.parametrize("column", ["messages", "conversations"])
def test_conversations_are_found_without_a_mapping(column: str) -> None:
    wanted = ("User: Hi\nAssistant: Hello.\nUser: Bye\nAssistant:", "See you.")
    assert _texts({column: MESSAGES, "prompt": "x"}) == wanted
    assert _texts({column: MESSAGES}, turn="first") == ("User: Hi\nAssistant:", "Hello.")


def test_templates_join_columns() -> None:
    columns = {"prompt": "{instruction}\n{input}", "response": "{output}"}
    row = {"instruction": "Add.", "input": "1 2", "output": "3"}
    assert _texts(row, **columns) == ("Add.\n1 2", "3")
    assert _texts({**row, "input": None}, **columns) == ("Add.", "3")
    assert _texts({**row, "output": [{"n": 3}]}, **columns) == ("Add.\n1 2", '[{"n": 3}]')
    assert _texts({**row, "instruction": "{output}"}, **columns) == ("{output}\n1 2", "3")


def test_a_named_column_of_messages() -> None:
    assert _texts({"talk": MESSAGES[:2]}, messages="talk") == ("User: Hi\nAssistant:", "Hello.")


def test_a_chat_of_two_columns() -> None:
    row = {"system": "SYSTEM: Be brief.", "chat": "USER: Hi\n\n\nASSISTANT: Hello. <|endoftext|>"}
    assert _texts(row, chat="{system}\n\n{chat}") == ("System: Be brief.\nUser: Hi\nAssistant:", "Hello.")


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"prompt": " ", "response": "b"}, {}),
        ({"prompt": "a", "response": ""}, {}),
        ({"prompt": "a", "response": None}, {}),
        ({"messages": MESSAGES[:1]}, {}),
        ({"messages": []}, {}),
        ({"a": None, "b": "x"}, {"prompt": "Question: {a}", "response": "{b}"}),
        ({"chat": ""}, {"chat": "{chat}"}),
    ],
)
def test_empty_rows_are_none(row: dict[str, Any], columns: dict[str, Any]) -> None:
    assert _texts(row, **columns) is None


@pytest.mark.parametrize(
    ("row", "columns", "message"),
    [
        ({"prompt": "a"}, {}, "response: no such field, only prompt"),
        ({}, {}, "prompt: no such field, only none"),
        (
            {"prompt": "a", "response": "x\ud800"},
            {},
            r"response: half a surrogate pair, '\\ud800', at character 1",
        ),
        ({"prompt": "a", "response": 5}, {}, "response: int instead of text"),
        ({"messages": "Hi"}, {}, "messages: str instead of a list"),
        ({"messages": [{"role": "user", "content": 1}]}, {}, r"messages: \[0\].content: int instead of text"),
        ({"a": "x"}, {"messages": "talk"}, "talk: no such field, only a"),
        ({"a": "x"}, {"prompt": "{a}", "response": "{b}"}, "b: no such field, only a"),
        ({"chat": "Hi"}, {"chat": "{chat}"}, r"\{chat\}: no SYSTEM:"),
    ],
)
def test_bad_rows_name_the_field(row: dict[str, Any], columns: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _texts(row, **columns)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"prompt": "{a}"}, "give prompt and response"),
        ({"prompt": "{a}", "response": "{b}", "messages": "c"}, "or messages, or chat"),
        ({"turn": "second"}, "'second' is neither"),
        ({"prompt": "{a.b}", "response": "{b}"}, "only {column} may stand in braces"),
        ({"prompt": "{a!r}", "response": "{b}"}, "only {column} may stand in braces"),
        ({"prompt": "{}", "response": "{b}"}, "only {column} may stand in braces"),
        ({"prompt": "{a", "response": "{b}"}, "template '{a'"),
        ({"chat": "chat"}, "template 'chat': has no {column}"),
    ],
)
def test_bad_columns_are_refused(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Columns(**columns)
