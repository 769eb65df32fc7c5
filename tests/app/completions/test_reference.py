"""The documentation's table of fields."""

from __future__ import annotations

from pathlib import Path

from app.completions.protocol import REFUSED, CompletionRequest
from app.completions.reference import NOTES, table

DOCUMENT = Path(__file__).parents[3] / "docs" / "completions.md"


def test_every_field_has_its_row() -> None:
    assert set(NOTES) | set(REFUSED) == set(CompletionRequest.model_fields)
    assert not set(NOTES) & set(REFUSED)
    assert table().count("\n") == len(CompletionRequest.model_fields) + 2


def test_document_is_made_from_the_code() -> None:
    """`python -m app.completions.reference` gives what docs/completions.md shows."""
    assert table() in DOCUMENT.read_text()
