"""The results file: figures by name, each with the run that measured it last."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from benchmarks.results import commit, read, record, typed

ENGINE, TRAINING = "python -m benchmarks.engine", "python -m benchmarks.training --rows 8"


def test_figures_of_other_commands_stay(tmp_path: Path) -> None:
    path = tmp_path / "results" / "gpu.json"
    record(path, ENGINE, {"raw": 1.0, "speedup": 2.0}, {"rates": {"raw": [1.0]}})
    record(path, TRAINING, {"training": 3.0})
    results = json.loads(path.read_text())
    assert results["figures"] == {"raw": 1.0, "speedup": 2.0, "training": 3.0}
    assert {command: run["figures"] for command, run in results["runs"].items()} == {
        ENGINE: ["raw", "speedup"],
        TRAINING: ["training"],
    }
    assert results["runs"][ENGINE]["details"] == {"rates": {"raw": [1.0]}}


def test_the_same_command_replaces_its_figures(tmp_path: Path) -> None:
    """Also those that it no longer measures."""
    path = tmp_path / "gpu.json"
    record(path, TRAINING, {"training": 3.0})
    record(path, ENGINE, {"raw": 1.0, "speedup": 2.0})
    record(path, ENGINE, {"raw": 4.0})
    assert read(path)["figures"] == {"raw": 4.0, "training": 3.0}
    assert read(path)["runs"][ENGINE]["figures"] == ["raw"]


def test_a_figure_belongs_to_the_command_that_measured_it_last(tmp_path: Path) -> None:
    """A run of which nothing is left goes."""
    path = tmp_path / "gpu.json"
    record(path, ENGINE, {"raw": 1.0, "speedup": 2.0})
    record(path, f"{ENGINE} --rounds 9", {"raw": 5.0})
    assert read(path)["figures"] == {"raw": 5.0, "speedup": 2.0}
    assert read(path)["runs"][ENGINE]["figures"] == ["speedup"]
    record(path, f"{ENGINE} --rounds 9", {"raw": 5.0, "speedup": 6.0})
    assert list(read(path)["runs"]) == [f"{ENGINE} --rounds 9"]


def test_a_run_says_when_and_on_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMIT", "abc")
    record(tmp_path / "gpu.json", ENGINE, {"raw": 1.0})
    run = read(tmp_path / "gpu.json")["runs"][ENGINE]
    assert run["commit"] == "abc" and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", run["date"])
    assert run["hardware"]["cpu"] and run["hardware"]["cores"] >= 1 and "gpus" in run["hardware"]
    assert {"python", "torch", "transformers"} <= set(run["versions"])


def test_the_commit_is_that_of_the_checkout() -> None:
    found = commit()
    assert found is None or re.fullmatch(r"[0-9a-f]{12}(-dirty)?", found)


def test_what_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "--rows", "8", "--out", "my results.json"])
    assert typed("benchmarks.training") == "python -m benchmarks.training --rows 8 --out 'my results.json'"


def test_a_command_names_no_folder_of_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["x", "--models", "1b", "--logs", "/somewhere", "--out", "r.json"])
    assert typed("benchmarks.x") == "python -m benchmarks.x --models 1b --out r.json"
