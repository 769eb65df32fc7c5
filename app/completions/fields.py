"""The types of the request's fields: what pydantic alone takes wrongly, or checks too slowly for a body of megabytes.

A list of a million entries is checked in one pass in C, and its first error alone is told.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

MAX_N = 128
MAX_PROMPTS = 1024
MAX_LOGPROBS = 20
MAX_STOPS = 64
MAX_BIASES = 1024
MAX_ALLOWED = 1024
"""What vLLM's V2 runner has room for; more ids would end the engine there, and so would 128 stop tokens."""
MAX_WORD = 64
INT64 = 2**63
INT32_MAX = 2**31 - 1


def _prompt(value: Any) -> Any:
    """Text, token ids, or a list of either; one pass instead of a union's four, for lists may be long."""
    if isinstance(value, str):
        if not value:
            raise ValueError("must not be empty")
        return value
    if not isinstance(value, list):
        raise ValueError("must be a string, a list of strings, a list of token ids or a list of such lists")
    if not value:
        raise ValueError("must not be empty")
    kinds = set(map(type, value))
    if kinds == {int}:
        return _ids(value)
    if len(value) > MAX_PROMPTS:
        raise ValueError(f"{len(value)} prompts, at most {MAX_PROMPTS} are taken")
    if kinds == {str}:
        if "" in value:
            raise ValueError(f"item {value.index('')} must not be empty")
        return value
    if kinds == {list}:
        for position, ids in enumerate(value):
            if not ids or set(map(type, ids)) != {int}:
                raise ValueError(f"item {position} must be a list of one or more token ids")
            _ids(ids)
        return value
    raise ValueError("must hold strings only, token ids only, or lists of token ids only")


def _ids(ids: list[int]) -> list[int]:
    if min(ids) < 0 or max(ids) > INT32_MAX:
        raise ValueError("holds a number that is no token id")
    return ids


def _token_ids(value: Any) -> Any:
    """One pass over the types and one over the values: a validator an item takes seconds for a million."""
    if value == []:
        return value
    if not isinstance(value, list) or set(map(type, value)) != {int}:
        raise ValueError("must be a list of token ids")
    return _ids(value)


def _biases(value: Any) -> Any:
    """Bounded before pydantic looks at each entry, and may complain of each."""
    if isinstance(value, dict):
        if len(value) > MAX_BIASES:
            raise ValueError(f"{len(value)} entries, at most {MAX_BIASES} are taken")
        if bool in set(map(type, value.values())):
            raise ValueError("a boolean is no bias")
    return value


def _number(value: Any) -> Any:
    """pydantic takes `true` for 1, which hides a mistaken field."""
    if isinstance(value, bool):
        raise ValueError("a boolean is no number")
    return value


def _strings(value: Any) -> Any:
    """The first that is no text is told, not all of a million."""
    if isinstance(value, list) and not set(map(type, value)) <= {str}:
        raise ValueError("must hold strings only")
    return value


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Int = Annotated[int, BeforeValidator(_number)]
Words = Annotated[list[Annotated[str, Field(max_length=MAX_WORD)]], BeforeValidator(_strings)]
Float = Annotated[float, BeforeValidator(_number)]
Strings = Annotated[list[str], BeforeValidator(_strings)]
OneOrMore = Annotated[Strings, BeforeValidator(_as_list)]
Biases = Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], BeforeValidator(_biases)]
TokenIds = Annotated[
    Any,
    BeforeValidator(_token_ids),
    WithJsonSchema({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": INT32_MAX}}),
]

_TEXT_SCHEMA: dict[str, Any] = {"type": "string", "minLength": 1}
_IDS_SCHEMA: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
PROMPT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        _TEXT_SCHEMA,
        {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS, "items": _TEXT_SCHEMA},
        _IDS_SCHEMA,
        {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS, "items": _IDS_SCHEMA},
    ]
}
Prompt = Annotated[Any, BeforeValidator(_prompt), WithJsonSchema(PROMPT_SCHEMA)]
