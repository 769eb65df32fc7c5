"""Constrained output: OpenAI's `response_format` and vLLM's `structured_outputs`, checked and made one."""

from __future__ import annotations

import json
from typing import Any

from app.completions.request import CompletionRequest
from app.engine import InvalidRequest

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


MAX_CHARACTERS = 32 * 1024
"""As JSON. vLLM has it parsed in the event loop: a schema of 120 000 characters takes 0.6 s there."""


def constraint_of(request: CompletionRequest) -> dict[str, Any] | None:
    """The one constraint with its options as the port takes it, None for free text.

    Raises:
        InvalidRequest: both forms at once, no or several kinds, an empty one, or one that is too long.
    """
    found = _given(request)
    if found is not None and (size := len(json.dumps(found, ensure_ascii=False))) > MAX_CHARACTERS:
        name = "response_format" if request.structured_outputs is None else "structured_outputs"
        raise InvalidRequest(f"{name}: {size} characters as JSON, at most {MAX_CHARACTERS} are taken", name)
    return found


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
