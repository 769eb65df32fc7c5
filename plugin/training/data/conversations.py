"""Conversations as training pairs: which turn is the response, and how the turns before it become the prompt.

The encoder reads everything before the response, the decoder learns the response. As in the published recipe the
response is the last assistant turn that has text ("last"); "first" takes the first one instead. Turns after it are
left out. Served prompts are plain text, so the turns before it become lines `User: ...`, closed by `Assistant:`; for a
verifier that was fine-tuned with a chat template of its own there is `template_text` (`--chat-template`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

Which = Literal["first", "last"]

_ROLES: Final = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
}
_CHAT_MARK: Final = re.compile(r"^[ \t]*(SYSTEM|USER|ASSISTANT|FUNCTION RESPONSE):", re.MULTILINE)
_CHAT_END: Final = "<|endoftext|>"


@dataclass(frozen=True, slots=True)
class Turn:
    """Who speaks (`user`, `assistant`, `system`, or what the data calls others) and the text, without outer blanks;
    `other` is the type of a part that is no text (`image`), of which the verifier would see nothing.
    """

    role: str
    text: str
    other: str | None = None


Render = Callable[[Sequence[Turn]], str]
"""The turns before the response as the encoder's text."""


def read_turns(messages: object) -> list[Turn]:
    """Turns of a list of messages, each {role, content} or {from, value}.

    Content may be text, nothing, or a list of parts, of which those of type "text" are joined by new lines. A field
    that is null is absent: so does a column look that holds messages of both styles. Raises `ValueError` naming the
    message by its place, from 0.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise ValueError(f"{type(messages).__name__} instead of a list of messages")
    turns = []
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise ValueError(f"[{number}]: {type(message).__name__} instead of an object")
        role, content = ("from", "value") if message.get("from") is not None else ("role", "content")
        if not isinstance(message.get(role), str):
            raise ValueError(f"[{number}]: no text in {role}")
        name = str(message[role]).strip().lower()
        text, other = _content(message.get(content), f"[{number}].{content}")
        turns.append(Turn(_ROLES.get(name, name), text, other))
    return turns


def _content(value: object, where: str) -> tuple[str, str | None]:
    """The text, and the type of the first part that is none."""
    if value is None or isinstance(value, str):
        return (value or "").strip(), None
    if not isinstance(value, list):
        raise ValueError(f"{where}: {type(value).__name__} instead of text")
    texts, others = [], []
    for number, part in enumerate(value):
        if part is None:
            continue
        if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
            raise ValueError(f"{where}[{number}]: no part with a type")
        if part["type"] != "text":
            others.append(part["type"])
        elif isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            raise ValueError(f"{where}[{number}]: {type(part.get('text')).__name__} instead of text")
    return "\n".join(texts).strip(), next(iter(others), None)


def read_chat(text: str) -> list[Turn]:
    """Turns of one string in which lines begin with `SYSTEM:`, `USER:`, `ASSISTANT:` or `FUNCTION RESPONSE:`.

    `<|endoftext|>` marks are dropped. Raises `ValueError` when a text stands before the first mark or none is there.
    """
    parts = _CHAT_MARK.split(text)
    if parts[0].strip() or len(parts) == 1:
        raise ValueError(f"no SYSTEM:, USER: or ASSISTANT: before {parts[0].strip()[:40]!r}")
    return [
        Turn(role.lower(), said.replace(_CHAT_END, "").strip())
        for role, said in zip(parts[1::2], parts[2::2], strict=True)
    ]


def split_turns(turns: Sequence[Turn], which: Which) -> tuple[Sequence[Turn], str] | None:
    """(turns before the response, response); None when no assistant turn has both text and a turn before it."""
    numbers = [
        number
        for number, turn in enumerate(turns)
        if turn.role == "assistant" and turn.text and any(earlier.text for earlier in turns[:number])
    ]
    if not numbers:
        return None
    chosen = numbers[0 if which == "first" else -1]
    return turns[:chosen], turns[chosen].text


def plain_text(turns: Sequence[Turn]) -> str:
    """`User: ...` lines and so on, one turn after the other, then `Assistant:`."""
    lines = [f"{turn.role.capitalize()}: {turn.text}" for turn in turns]
    return "\n".join([*lines, "Assistant:"])


def template_text(tokenizer: Any) -> Render:
    """By the tokenizer's chat template, without the start token that encoding adds. ValueError when it has none."""
    if not tokenizer.chat_template:
        raise ValueError("--chat-template: the verifier's tokenizer has no chat template")

    def render(turns: Sequence[Turn]) -> str:
        messages = [{"role": turn.role, "content": turn.text} for turn in turns]
        text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return text.removeprefix(tokenizer.bos_token or "")

    return render
