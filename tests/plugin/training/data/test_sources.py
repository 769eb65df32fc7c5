"""Sources: JSONL by line, datasets of the hub by row, the demo's generator."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plugin.training.data.pairs import DataError
from plugin.training.data.problems.generate import take
from plugin.training.data.sources import Source, demo_rows, hub_rows, jsonl_rows

ROWS = [{"prompt": f"p{i}", "response": f"r{i}"} for i in range(3)]


def test_jsonl_rows_are_named_by_line(tmp_path: Path) -> None:
    text = "\n".join([json.dumps(ROWS[0]), "", json.dumps(ROWS[1]), json.dumps(ROWS[2]), ""])
    (tmp_path / "mine.jsonl").write_text(text)
    with gzip.open(tmp_path / "mine.jsonl.gz", "wt") as file:
        file.write(text)
    for name in ("mine.jsonl", "mine.jsonl.gz"):
        rows = jsonl_rows(tmp_path / name)
        assert [rows.row(i) for i in range(rows.size)] == ROWS
        assert [rows.name(i) for i in range(3)] == [f"{name}:1", f"{name}:3", f"{name}:4"]
        assert rows.facts == {"kind": "jsonl", "file": name}


def test_lines_end_at_line_ends_alone_and_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    """Windows' line ends and mark, and U+2028 inside a text, which other splitters take for a line's end."""
    row = {"prompt": "one\u2028two\x85", "response": "ü"}
    line = json.dumps(row, ensure_ascii=False) + "\r\n"
    (tmp_path / "mine.jsonl").write_bytes(b"\xef\xbb\xbf" + line.encode() * 2)
    rows = jsonl_rows(tmp_path / "mine.jsonl")
    assert [rows.row(i) for i in range(rows.size)] == [row, row]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"prompt": "a"}\n{"prompt": \n', "bad.jsonl:2: no JSON: "),
        (b'{"prompt": "a"}\n\n["a"]\n', "bad.jsonl:3: list instead of an object"),
        (b'{"prompt": "\xff"}\n', "bad.jsonl: 'utf-8' codec"),
        (b'{"prompt": ' + b"[" * 100_000 + b"\n", "bad.jsonl:1: no JSON: "),
    ],
)
def test_broken_files_name_the_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "bad.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        jsonl_rows(tmp_path / "bad.jsonl")
    assert "\n" not in str(error.value)


def test_a_cut_gzip_and_a_missing_file_are_told(tmp_path: Path) -> None:
    cut = gzip.compress(json.dumps(ROWS[0]).encode() * 100)[:-9]
    (tmp_path / "cut.jsonl.gz").write_bytes(cut)
    with pytest.raises(DataError, match=r"cut.jsonl.gz: Compressed file ended"):
        jsonl_rows(tmp_path / "cut.jsonl.gz")
    torn = bytearray(gzip.compress(b"".join(b"%d " % number for number in range(2000))))
    torn[len(torn) // 2] ^= 0xFF
    (tmp_path / "torn.jsonl.gz").write_bytes(torn)
    with pytest.raises(DataError, match=r"torn.jsonl.gz: .*Error -3"):
        jsonl_rows(tmp_path / "torn.jsonl.gz")
    with pytest.raises(DataError, match=r"none.jsonl: .*No such file"):
        jsonl_rows(tmp_path / "none.jsonl")


def test_demo_rows_are_the_generators_training_problems() -> None:
    """Bare and in the published wrappings in turn (N30)."""
    rows = demo_rows("demo", 4, seed=7)
    problems = take(7, "train", 4)
    asked = [
        problems[0].question,
        f"Solve the problem step by step.\n\nQuestion: {problems[1].question}\nAnswer:",
        f"Solve step by step.\n\nQuestion: {problems[2].question}\nAnswer:",
        problems[3].question,
    ]
    assert [rows.row(i) for i in range(4)] == [
        {"prompt": prompt, "response": problem.answer}
        for prompt, problem in zip(asked, problems, strict=True)
    ]
    assert (rows.size, rows.name(3), rows.facts) == (4, "demo:3", {"kind": "demo", "generator_seed": 7})


@pytest.fixture
def local_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the library reads as a dataset with two splits, and a cache of its own."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    folder = tmp_path / "set"
    folder.mkdir()
    for split, rows in (("train", ROWS), ("test", ROWS[:1])):
        datasets.Dataset.from_list(rows).to_parquet(str(folder / f"{split}.parquet"))
    return folder


def test_hub_rows_of_a_split(local_dataset: Path) -> None:
    rows = hub_rows("mine", str(local_dataset), None, "train", None)
    assert [rows.row(i) for i in range(rows.size)] == ROWS
    assert rows.name(2) == "mine:2"
    assert rows.facts["split"] == "train" and rows.facts["dataset"] == str(local_dataset)
    json.dumps(rows.facts)
    assert hub_rows("mine", str(local_dataset), None, "test", None).size == 1


def test_a_dataset_that_cannot_be_loaded_is_one_line(local_dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"mine: .* cannot be loaded: ValueError: Unknown split") as error:
        hub_rows("mine", str(local_dataset), None, "dev", None)
    assert "\n" not in str(error.value)
    with pytest.raises(DataError, match=r"mine: .*nowhere cannot be loaded: "):
        hub_rows("mine", str(tmp_path / "nowhere"), None, "train", None)


def test_the_commit_is_read_from_the_files_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0123456789" * 4

    class Loaded(list[Any]):
        _fingerprint = "f"
        info = SimpleNamespace(download_checksums={f"hf://datasets/a/b@{commit}/train.parquet": {}})

    class Library:
        @staticmethod
        def load_dataset(*arguments: Any, **options: Any) -> Any:
            assert (arguments, options) == (("a/b", "c"), {"split": "train", "revision": "main"})
            return Loaded(ROWS)

    monkeypatch.setitem(sys.modules, "datasets", Library)
    assert hub_rows("mine", "a/b", "c", "train", "main").facts["revision"] == commit


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"mine: needs the package datasets: .*\[train\]"):
        hub_rows("mine", "a/b", None, "train", None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "mine: give one of jsonl, dataset and demo"),
        ({"dataset": "a/b", "demo": True}, "mine: give one of"),
        ({"demo": True}, "mine: count is needed"),
        ({"dataset": "a/b", "count": 0}, "mine: count 0 is below 1"),
    ],
)
def test_a_source_is_one_thing(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Source("mine", **fields)
