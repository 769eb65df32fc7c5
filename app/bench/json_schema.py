"""The JSON Schema that every answer of a benchmark is held to: structured output as users ask for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from app.bench.errors import BenchError


def read_schema(path: Path) -> str:
    """The schema in a file, as compact JSON. Its properties stay in the file's order, which is that of an answer's.

    Raises:
        BenchError: it cannot be read, is no JSON Schema, or says nothing about an answer.
    """
    try:
        schema = json.loads(path.read_bytes())
    except OSError as error:
        raise BenchError(f"--json-schema {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BenchError(f"--json-schema {path}: is no JSON: {error}") from None
    if not isinstance(schema, dict) or not schema.keys() & Draft202012Validator.VALIDATORS.keys():
        raise BenchError(
            f"--json-schema {path}: is no JSON Schema: it has no keyword of one, as `properties`"
        )
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise BenchError(
            f"--json-schema {path}: is no JSON Schema: {error.json_path}: {error.message}"
        ) from None
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def response_format(schema: str) -> dict[str, Any]:
    """OpenAI's field of a request, which every server with structured output takes."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": json.loads(schema)}}
