"""Constrained output: OpenAI's `response_format` and vLLM's `structured_outputs`, checked and made one."""

from __future__ import annotations

import json
from typing import Any

from app.completions.request import CompletionRequest
from app.engine import InvalidRequest

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


MAX_CHARACTERS = 32 * 1024
"""As JSON. vLLM has it parsed in the event loop: a schema of 120 000 characters takes 0.6 s there."""


MAX_ITEMS = 16_384
"""All `maxItems` of a schema together. llguidance, which vLLM asks in the event loop, makes rules of each: a million
take ten seconds and a gigabyte.
"""


def constraint_of(request: CompletionRequest) -> dict[str, Any] | None:
    """The one constraint with its options as the port takes it, None for free text.

    Raises:
        InvalidRequest: both forms at once, no or several kinds, an empty one, or one that is too long or too large.
    """
    found = _given(request)
    if found is None:
        return None
    name = "response_format" if request.structured_outputs is None else "structured_outputs"
    if (size := len(json.dumps(found, ensure_ascii=False))) > MAX_CHARACTERS:
        raise InvalidRequest(f"{name}: {size} characters as JSON, at most {MAX_CHARACTERS} are taken", name)
    if (items := _items(found)) > MAX_ITEMS:
        raise InvalidRequest(f"{name}: maxItems add up to {items:.0f}, at most {MAX_ITEMS} are taken", name)
    return found


def _items(constraint: dict[str, Any]) -> float:
    """All `maxItems` in it together, those of a schema that is written as a text too."""
    total, waiting = 0.0, [constraint[kind] for kind in ("json", "structural_tag") if kind in constraint]
    waiting = [_parsed(one) if isinstance(one, str) else one for one in waiting]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            limit = one.get("maxItems")
            total += limit if isinstance(limit, int | float) and limit > 0 else 0
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return total


def _parsed(text: str) -> Any:
    """None where it is no JSON, which the engine says better."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _given(request: CompletionRequest) -> dict[str, Any] | None:
    form = request.response_format
    if form is None or form.type == "text":
        return _structured(request)
    if request.structured_outputs is not None:
        raise InvalidRequest("response_format and structured_outputs exclude each other", "response_format")
    if form.type == "json_object":
        return {"json_object": True}
    if form.type == "structural_tag":
        return {"structural_tag": json.dumps(form.model_dump(by_alias=True, exclude_unset=True))}
    if form.json_schema is None:
        raise InvalidRequest("response_format of type json_schema needs json_schema", "response_format")
    return {"json": form.json_schema.json_schema}


def _structured(request: CompletionRequest) -> dict[str, Any] | None:
    if request.structured_outputs is None:
        return None
    given = request.structured_outputs.model_dump(by_alias=True, exclude_none=True, exclude_defaults=True)
    kinds = [kind for kind in KINDS if kind in given]
    if len(kinds) != 1:
        raise InvalidRequest(
            f"structured_outputs needs exactly one of {', '.join(KINDS)}; got {', '.join(kinds) or 'none'}",
            "structured_outputs",
        )
    if given[kinds[0]] in (False, "", []):
        raise InvalidRequest(f"structured_outputs.{kinds[0]} must not be empty", "structured_outputs")
    return given
