"""Constrained output: OpenAI's `response_format` and vLLM's `structured_outputs`, checked and made one."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

from app.completions.request import CompletionRequest
from app.engine import InvalidRequest

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
COMPACT = "disable_any_whitespace"
UNHEARD = ("disable_additional_properties", "whitespace_pattern")
"""Options of vLLM's form that none of its grammar engines reads from a request."""


MAX_CHARACTERS = 32 * 1024
"""As JSON. vLLM has it parsed in the event loop: a schema of 120 000 characters takes 0.6 s there."""


MAX_ITEMS = 16_384
"""The numbers of items that a schema bounds its lists by, `minItems` or `maxItems`, all together. llguidance, which
vLLM asks in the event loop, makes rules of each: a million take ten seconds and a gigabyte, 10^9 all memory there is.
"""


def constraint_of(request: CompletionRequest, compact: bool) -> dict[str, Any] | None:
    """The one constraint with its options as the port takes it, None for free text. JSON is `compact`, without white
    space outside of strings, unless the request says whether it is.

    Raises:
        InvalidRequest: both forms at once, no or several kinds, an empty one, one that is too long or too large, or an
            option that would not be heard.
    """
    found = _given(request, compact)
    if found is None:
        return None
    name = field_of(request)
    if (size := len(json.dumps(found, ensure_ascii=False))) > MAX_CHARACTERS:
        raise InvalidRequest(f"{name}: {size} characters as JSON, at most {MAX_CHARACTERS} are taken", name)
    if (items := _items(found)) > MAX_ITEMS:
        raise InvalidRequest(
            f"{name}: minItems and maxItems add up to {items:.0f}, at most {MAX_ITEMS} are taken", name
        )
    return found


def field_of(request: CompletionRequest) -> str:
    """The field that the constraint stands in."""
    form = request.response_format
    return "structured_outputs" if form is None or form.type == "text" else "response_format"


def _items(constraint: dict[str, Any]) -> float:
    """The larger of `minItems` and `maxItems` of all lists in it together, those of a schema that is written as a text,
    or within a grammar, too."""
    total, waiting = 0.0, [constraint[kind] for kind in ("json", "structural_tag") if kind in constraint]
    waiting = [_parsed(one) if isinstance(one, str) else one for one in waiting]
    waiting += _schemas_within(constraint.get("grammar", ""))
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            limits = (one.get(name) for name in ("minItems", "maxItems"))
            total += max(
                (limit for limit in limits if isinstance(limit, int | float) and limit > 0), default=0
            )
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return total


def _schemas_within(grammar: str) -> list[Any]:
    """What stands behind each `%json` of a Lark grammar."""
    found = []
    for at in re.finditer(r"%json\s*", grammar):
        with suppress(ValueError, RecursionError):  # no JSON, which the engine says better
            found.append(json.JSONDecoder().raw_decode(grammar, at.end())[0])
    return found


def _parsed(text: str) -> Any:
    """None where it is no JSON, which the engine says better."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _given(request: CompletionRequest, compact: bool) -> dict[str, Any] | None:
    own = request.structured_outputs
    given = {} if own is None else own.model_dump(by_alias=True, exclude_none=True, exclude_defaults=True)
    for option in UNHEARD:
        if option in given:
            raise _refused(f"structured_outputs.{option} is not supported: vLLM's grammars do not read it")
    kinds = [kind for kind in KINDS if kind in given]
    if (formed := _formed(request)) is not None:
        if kinds:
            raise InvalidRequest(
                "response_format and structured_outputs exclude each other", "response_format"
            )
        given |= formed
    elif own is None:
        return None
    elif len(kinds) != 1:
        raise _refused(
            f"structured_outputs needs exactly one of {', '.join(KINDS)}; got {', '.join(kinds) or 'none'}"
        )
    elif given[kinds[0]] in (False, "", []):
        raise _refused(f"structured_outputs.{kinds[0]} must not be empty")
    of_json = "json" in given or "json_object" in given
    if given.get(COMPACT) and not of_json:
        raise _refused(f"structured_outputs.{COMPACT} needs json or json_object")
    if compact and of_json:
        given.setdefault(COMPACT, True)
    return given


def _formed(request: CompletionRequest) -> dict[str, Any] | None:
    """What OpenAI's form asks for, None for free text."""
    form = request.response_format
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return {"json_object": True}
    if form.type == "structural_tag":
        return {"structural_tag": json.dumps(form.model_dump(by_alias=True, exclude_unset=True))}
    if form.json_schema is None:
        raise InvalidRequest("response_format of type json_schema needs json_schema", "response_format")
    return {"json": form.json_schema.json_schema}


def _refused(why: str) -> InvalidRequest:
    return InvalidRequest(why, "structured_outputs")
