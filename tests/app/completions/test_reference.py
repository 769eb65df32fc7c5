"""The documentation's table of fields."""

from __future__ import annotations

from pathlib import Path

from app.completions.protocol import REFUSED, CompletionRequest
from app.completions.reference import table

DOCUMENT = Path(__file__).parents[3] / "docs" / "completions.md"
SPEAK_FOR_THEMSELVES = {
    "ignore_eos",
    "include_stop_str_in_output",
    "min_tokens",
    "skip_special_tokens",
    "spaces_between_special_tokens",
}


def test_every_field_has_its_row_and_is_explained() -> None:
    assert table().count("\n") == len(CompletionRequest.model_fields) + 2
    silent = {name for name, field in CompletionRequest.model_fields.items() if not field.description}
    assert silent == SPEAK_FOR_THEMSELVES
    assert "suffix" in REFUSED and not set(REFUSED) & silent


def test_openapi_explains_the_fields() -> None:
    shown = CompletionRequest.model_json_schema()["properties"]
    assert shown["echo"]["description"].startswith("the prompt before the text")
    assert shown["suffix"]["description"] == "400: the model does not fill in the middle"


def test_document_is_made_from_the_code() -> None:
    """`python -m app.completions.reference` gives what docs/completions.md shows."""
    assert table() in DOCUMENT.read_text()
