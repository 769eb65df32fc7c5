"""BENCHMARKS.md's section of the GPU: what the results file gives, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.report import BEGIN, DOCUMENT, END, NOTHING, main, meaning, section, written
from benchmarks.results import H200, read, record


def test_the_document_says_what_the_file_gives() -> None:
    """Also that there is nothing yet, while there is no file: `python -m benchmarks.report` mends it."""
    document = DOCUMENT.read_text()
    assert written(document, read(H200)) == document


def test_every_recorded_figure_is_explained() -> None:
    assert [name for name in read(H200)["figures"] if meaning(name) == "–"] == []


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COMMIT", "abc123")
    path = tmp_path / "gpu.json"
    record(path, "python -m benchmarks.engine", {"speedup_dflash_k7_bs4": 2.61803, "other": 1.0})
    record(path, "python -m benchmarks.training --rows 8", {"training_dflare_tokens_per_second": 123456.7})
    return path


def test_each_run_stands_with_its_origin(results: Path) -> None:
    made = section(read(results))
    engine, first, training, second = made.split("\n\n")
    assert engine.startswith("`python -m benchmarks.engine`, 20") and "commit abc123." in engine
    assert read(results)["runs"]["python -m benchmarks.engine"]["versions"]["torch"] in engine
    assert first.splitlines()[2:] == [
        "| `other` | 1 | – |",
        "| `speedup_dflash_k7_bs4` | 2.618 | output tokens/s with the draft over none, at the acceptance"
        " length of the run |",
    ]
    assert training.startswith("`python -m benchmarks.training --rows 8`, 20")
    assert "1.235e+05" in second


def test_only_the_section_changes(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = tmp_path / "document.md"
    document.write_text(f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    monkeypatch.setattr(sys, "argv", ["x", "--results", str(results), "--document", str(document)])
    main()
    text = document.read_text()
    assert text == f"before\n\n{BEGIN}\n\n{section(read(results))}\n\n{END}\n\nafter\n"
    main()
    assert document.read_text() == text


def test_nothing_recorded(tmp_path: Path) -> None:
    assert section(read(tmp_path / "none.json")) == NOTHING


def test_a_document_without_a_section_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no <!-- gpu"):
        written(f"{END} {BEGIN}", {"figures": {}, "runs": {}})
