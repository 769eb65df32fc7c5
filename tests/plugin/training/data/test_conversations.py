"""Conversations: both message styles, chat strings, which turn is the response, the encoder's text."""

from __future__ import annotations

from typing import Any

import pytest

from plugin.training.data.conversations import (
    Turn,
    plain_text,
    read_chat,
    read_turns,
    split_turns,
    template_text,
)

TALK = [
    Turn("system", "Be brief."),
    Turn("user", "Hi"),
    Turn("assistant", "Hello."),
    Turn("user", "2+2?"),
    Turn("assistant", "4"),
    Turn("user", "Thanks"),
]


def test_both_styles_of_messages_are_one() -> None:
    roles = [{"role": "user", "content": " Hi\n"}, {"role": "Assistant", "content": "Hello."}]
    froms = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]
    assert read_turns(roles) == read_turns(froms) == [Turn("user", "Hi"), Turn("assistant", "Hello.")]


def test_content_may_be_nothing_or_parts() -> None:
    parts = [{"type": "text", "text": "a"}, None, {"type": "text", "text": "b", "image": None}]
    messages = [{"role": "assistant", "content": None}, {"role": "user", "content": parts}]
    assert read_turns(messages) == [Turn("assistant", ""), Turn("user", "a\nb")]


def test_a_part_that_is_no_text_is_told() -> None:
    """An image beside the text is not dropped without a word (N35)."""
    parts = [{"type": "text", "text": "a"}, {"type": "image", "text": None}, {"type": "audio"}]
    assert read_turns([{"role": "user", "content": parts}]) == [Turn("user", "a", "image")]


def test_null_fields_of_the_other_style_are_absent() -> None:
    """Messages of both styles in one column have all four fields (N35)."""
    one = {"from": None, "value": None, "role": "user", "content": "Hi"}
    two = {"from": "gpt", "value": "Hello.", "role": None, "content": None}
    assert read_turns([one, two]) == [Turn("user", "Hi"), Turn("assistant", "Hello.")]


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("Hi", "str instead of a list"),
        (None, "NoneType instead of a list"),
        (["Hi"], r"\[0\]: str instead of an object"),
        ([{"role": "user", "content": "a"}, {"content": "b"}], r"\[1\]: no text in role"),
        ([{"from": None, "value": "b"}], r"\[0\]: no text in role"),
        ([{"role": "user", "content": 5}], r"\[0\].content: int instead of text"),
        ([{"from": "gpt", "value": [{"type": "text", "text": 5}]}], r"\[0\].value\[0\]: int instead of text"),
        ([{"role": "user", "content": ["Hi"]}], r"\[0\].content\[0\]: no part with a type"),
    ],
)
def test_bad_messages_name_their_place(messages: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_turns(messages)


def test_a_chat_string_is_cut_at_its_marks() -> None:
    chat = (
        "SYSTEM: You have functions -\n{}\n\n\nUSER: What does ASSISTANT: mean?\n\n\n"
        'ASSISTANT: <functioncall> {"name": "look"} <|endoftext|>\n\n\nFUNCTION RESPONSE: {"a": 1}\n\n\n'
        "ASSISTANT: A helper.\nOn two lines. <|endoftext|>\n\n\n"
    )
    assert read_chat(chat) == [
        Turn("system", "You have functions -\n{}"),
        Turn("user", "What does ASSISTANT: mean?"),
        Turn("assistant", '<functioncall> {"name": "look"}'),
        Turn("function response", '{"a": 1}'),
        Turn("assistant", "A helper.\nOn two lines."),
    ]


@pytest.mark.parametrize("chat", ["", "Hello", "Hello\nUSER: Hi"])
def test_a_string_that_is_no_chat_is_refused(chat: str) -> None:
    with pytest.raises(ValueError, match="no SYSTEM:, USER: or ASSISTANT: before"):
        read_chat(chat)


def test_first_and_last_response() -> None:
    assert split_turns(TALK, "first") == (TALK[:2], "Hello.")
    assert split_turns(TALK, "last") == (TALK[:4], "4")


@pytest.mark.parametrize(
    "turns",
    [
        [],
        [Turn("user", "Hi")],
        [Turn("assistant", "Hello.")],
        [Turn("user", ""), Turn("assistant", "Hello.")],
        [Turn("user", "Hi"), Turn("assistant", "")],
    ],
)
def test_no_response_without_text_and_a_turn_before(turns: list[Turn]) -> None:
    assert split_turns(turns, "first") is split_turns(turns, "last") is None


def test_empty_responses_are_passed_over() -> None:
    turns = [*TALK[:4], Turn("assistant", "")]
    assert split_turns(turns, "last") == (TALK[:2], "Hello.")


def test_plain_text_names_the_roles() -> None:
    assert plain_text(TALK[:2]) == "System: Be brief.\nUser: Hi\nAssistant:"


class _Template:
    bos_token = "<bos>"
    chat_template: str | None = "a template"

    def apply_chat_template(
        self, messages: list[dict[str, str]], tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert not tokenize and add_generation_prompt
        return (
            "<bos>" + "".join(f"[{message['role']}]{message['content']}" for message in messages) + "[model]"
        )


def test_a_chat_template_is_used_and_its_start_token_left_to_encoding() -> None:
    tokenizer = _Template()
    assert template_text(tokenizer)(TALK[:2]) == "[system]Be brief.[user]Hi[model]"
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="has no chat template"):
        template_text(tokenizer)
