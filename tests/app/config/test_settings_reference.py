"""The documentation's table of settings."""

from __future__ import annotations

from pathlib import Path

from app.config.settings import Settings, variable
from app.config.settings_reference import UNITS, table, type_of

DOCUMENT = Path(__file__).parents[3] / "docs" / "settings.md"


def test_document_is_made_from_the_code() -> None:
    """`python -m app.config.settings_reference` gives what docs/settings.md shows."""
    assert table() in DOCUMENT.read_text(), (
        "put the output of `python -m app.config.settings_reference` into it"
    )


def test_every_setting_has_its_row() -> None:
    rows = table().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == [variable(field) for field in Settings.model_fields]
    assert all(len(row.replace("\\|", "").split("|")) == 7 for row in rows)


def test_every_number_has_a_unit() -> None:
    numbers = {
        field
        for field, info in Settings.model_fields.items()
        if type_of(info).startswith(("integer", "number"))
    }
    assert set(UNITS) == numbers


def test_types_and_ranges() -> None:
    fields = Settings.model_fields
    shown = {
        field: type_of(fields[field])
        for field in ("k", "data_parallel_size", "gpu_memory_utilization", "dtype")
    }
    assert shown == {
        "k": "integer, from 1, or auto",
        "data_parallel_size": "integer, 1 ... 64",
        "gpu_memory_utilization": "number, above 0, at most 1",
        "dtype": "auto, bfloat16, float32",
    }
    assert type_of(fields["request_timeout_s"]) == "number, above 0"
    assert (type_of(fields["api_keys"]), type_of(fields["model"])) == ("comma list", "text")
