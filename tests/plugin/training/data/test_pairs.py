"""Rows as pairs: every way to map columns, what is skipped, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from plugin.training.data.conversations import plain_text
from plugin.training.data.pairs import Columns, DataError, Unusable

MESSAGES = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Bye"},
    {"role": "assistant", "content": "See you."},
]


def _texts(row: dict[str, Any], prompts_alone: bool = False, **columns: Any) -> tuple[str, str]:
    return Columns(**columns).texts(row, plain_text, prompts_alone)


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


SEVERAL_SHAPES = {"messages": None, "conversations": None, "prompt": None, "response": None, "system": None}
"""A row as a dataset gives it whose rows have several shapes: every column, null where the row has none."""


def test_null_columns_are_absent() -> None:
    """(N35)"""
    wanted = ("User: Hi\nAssistant:", "Hello.")
    for column in ("messages", "conversations"):
        assert _texts({**SEVERAL_SHAPES, column: MESSAGES[:2]}) == wanted
    assert _texts({**SEVERAL_SHAPES, "prompt": "a", "response": "b"}) == ("a", "b")


def test_the_system_column_is_the_first_turn() -> None:
    """ShareGPT's separate column (N35); a conversation that has a system turn keeps its own."""
    row = {"conversations": MESSAGES[:2], "system": " Be brief. "}
    assert _texts(row) == ("System: Be brief.\nUser: Hi\nAssistant:", "Hello.")
    own = [{"role": "system", "content": "Mine."}, *MESSAGES[:2]]
    assert _texts({**row, "conversations": own}) == ("System: Mine.\nUser: Hi\nAssistant:", "Hello.")
    assert _texts({**row, "system": ""}) == ("User: Hi\nAssistant:", "Hello.")


def test_prompts_alone() -> None:
    """No response is needed, nor looked at, where the verifier answers (N36)."""
    assert _texts({"prompt": "a"}, True) == ("a", "") == _texts({"prompt": "a", "response": 5}, True)
    assert _texts({"q": "a"}, True, prompt="Q: {q}") == ("Q: a", "")
    assert _texts({"messages": MESSAGES[:1]}, True) == ("User: Hi\nAssistant:", "")
    assert _texts({"messages": MESSAGES}, True)[0] == _texts({"messages": MESSAGES})[0]
    with pytest.raises(ValueError, match="no template of a response; --responses verifier"):
        _texts({"q": "a"}, prompt="Q: {q}")


IMAGE = [{"role": "user", "content": [{"type": "text", "text": "What?"}, {"type": "image_url"}]}, MESSAGES[1]]


@pytest.mark.parametrize(
    ("row", "columns", "reason"),
    [
        ({"prompt": " ", "response": "b"}, {}, "no prompt"),
        ({"prompt": "a", "response": ""}, {}, "no response"),
        ({"prompt": "a", "response": None}, {}, "no response"),
        ({"messages": MESSAGES[:1]}, {}, "no response"),
        ({"messages": [], "system": "Be brief."}, {}, "no prompt"),
        (SEVERAL_SHAPES, {}, "no prompt"),
        ({"messages": None}, {}, "no prompt"),
        ({"a": None, "b": "x"}, {"prompt": "Question: {a}", "response": "{b}"}, "no prompt"),
        ({"chat": ""}, {"chat": "{chat}"}, "no prompt"),
        ({"messages": IMAGE}, {}, "with image_url"),
        ({"messages": MESSAGES, "images": ["a.png"]}, {}, "with images"),
    ],
)
def test_what_is_no_pair_says_why(row: dict[str, Any], columns: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unusable, match=f"^{reason}$"):
        _texts(row, **columns)


def test_images_behind_the_response_do_not_matter() -> None:
    assert _texts({"messages": [*MESSAGES[:2], *IMAGE[:1]], "images": []}) == (
        "User: Hi\nAssistant:",
        "Hello.",
    )


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
        ({"response": "{a}"}, "give prompt and response"),
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
