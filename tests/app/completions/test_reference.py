"""The documentation's table of fields."""

from __future__ import annotations

from pathlib import Path

from app.completions.reference import table
from app.completions.request import REFUSED, CompletionRequest

DOCUMENT = Path(__file__).parents[3] / "docs" / "completions.md"


def test_every_field_has_its_row_and_is_explained() -> None:
    assert table().count("\n") == len(CompletionRequest.model_fields) + 2
    assert all(field.description for field in CompletionRequest.model_fields.values())


def test_openapi_explains_the_fields() -> None:
    shown = CompletionRequest.model_json_schema()["properties"]
    assert shown["echo"]["description"].startswith("The prompt before the text")
    assert shown["suffix"]["description"] == f"400: {REFUSED['suffix']}"


def test_document_is_made_from_the_code() -> None:
    """`python -m app.completions.reference` gives what docs/completions.md shows."""
    assert table() in DOCUMENT.read_text()
