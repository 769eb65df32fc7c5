"""Mixtures: exact counts, an order that follows from the seed alone, one line for what is wrong."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plugin.training.data.conversations import Turn
from plugin.training.data.mixture import read_data
from plugin.training.data.pairs import DataError, Pair
from plugin.training.data.problems.generate import take, wrapped


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def _rows(count: int, name: str = "p") -> list[dict[str, Any]]:
    return [{"prompt": f"{name}{i}", "response": f"r{i}"} for i in range(count)]


@pytest.fixture
def mixed(tmp_path: Path) -> str:
    """A profile: 3 of 6 rows of a.jsonl, of which the first two that seed 42 draws are empty, and 2 problems."""
    rows = _rows(6, "a")
    one, two = np.random.default_rng(42).permutation(6)[:2]
    rows[one]["response"], rows[two]["prompt"] = " ", None
    _write(tmp_path / "a.jsonl", rows)
    (tmp_path / "mix.toml").write_text(
        '[[source]]\nname = "a"\njsonl = "a.jsonl"\ncount = 3\n'
        '[[source]]\nname = "sums"\ndemo = true\ncount = 2\n'
    )
    return str(tmp_path / "mix.toml")


def test_a_whole_file_is_taken_and_shuffled(tmp_path: Path) -> None:
    source_spec = _write(tmp_path / "mine.jsonl", _rows(50))
    data = read_data([source_spec], seed=42)
    assert sorted(pair.id for pair in data.pairs) == sorted(f"mine.jsonl:{line}" for line in range(1, 51))
    assert all(pair.id == f"mine.jsonl:{int(pair.prompt[1:]) + 1}" for pair in data.pairs)
    assert [pair.prompt for pair in data.pairs] != [row["prompt"] for row in _rows(50)]
    assert read_data([source_spec], seed=42) == data
    assert [pair.id for pair in read_data([source_spec], seed=43).pairs] != [pair.id for pair in data.pairs]


def test_counts_are_exact_and_logged(mixed: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        data = read_data([mixed], seed=42)
    first, second = data.counts["sources"]
    assert len(data.pairs) == data.counts["pairs"] == 5 and data.counts["seed"] == 42
    expected = {"source": "a", "seed": 42, "rows": 6, "asked": 3, "taken": 3, "skipped": 2}
    expected |= {"reasons": {"no response": 1, "no prompt": 1}}
    assert first == first | expected
    assert "a: 3 of 6 rows taken, 2 skipped: 1 no response, 1 no prompt" in caplog.text
    assert (second["source"], second["taken"], second["generator_seed"]) == ("sums", 2, 43)
    assert {pair.prompt for pair in data.pairs if pair.id.startswith("sums:")} == {
        wrapped(problem.question, number) for number, problem in enumerate(take(43, "train", 2))
    }
    assert json.loads(json.dumps(data.counts)) == data.counts


def test_a_draw_is_the_permutation_of_seed_plus_index(tmp_path: Path) -> None:
    """The order that datasets' own shuffle gives: numpy's default generator over the rows."""
    source_spec = _write(tmp_path / "mine.jsonl", _rows(20))
    (tmp_path / "mix.toml").write_text('[[source]]\nname = "m"\njsonl = "mine.jsonl"\ncount = 4\n')
    pairs = read_data([source_spec, str(tmp_path / "mix.toml")], seed=5).pairs
    drawn = np.random.default_rng(6).permutation(20)[:4]
    counts: dict[str, int] = {}
    for pair in pairs:
        counts[pair.id] = counts.get(pair.id, 0) + 1
    assert {name for name, count in counts.items() if count == 2} == {f"mine.jsonl:{i + 1}" for i in drawn}


def test_how_rows_became_pairs_is_told(mixed: str) -> None:
    """The converters that the published data_config.json has, too (N38)."""
    text = (
        Path(mixed)
        .read_text()
        .replace("count = 3", 'count = 3\nprompt = "Q: {prompt}"\nresponse = "{response}"')
    )
    Path(mixed).write_text(text)
    first, second = read_data([mixed], seed=42).counts["sources"]
    assert first["converters"] == {"prompt": "Q: {prompt}", "response": "{response}", "turn": "last"}
    assert second["converters"] == {
        "columns": "messages, conversations or prompt and response",
        "turn": "last",
    }


def test_rows_of_several_shapes(tmp_path: Path) -> None:
    """What the library datasets makes of them: every column in every row, null where a row had none (N35)."""
    import datasets

    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}]
    wrote = [{"from": "human", "value": "Ho"}, {"from": "gpt", "value": "No."}]
    rows = [{"messages": said}, {"conversations": wrote, "system": "S"}, {"prompt": "a", "response": "b"}]
    rows += [{"prompt": "c"}]
    folder = tmp_path / "data"
    folder.mkdir()
    _write(folder / "train.jsonl", rows)
    assert None in datasets.load_dataset(str(folder), split="train")[0].values()
    for spec in (f"hf:{folder}", str(folder / "train.jsonl")):
        if spec.endswith("jsonl"):  # the same rows as a file that was made of such a dataset
            full = [
                dict.fromkeys(("messages", "conversations", "system", "prompt", "response")) | row
                for row in rows
            ]
            _write(folder / "train.jsonl", full)
        data = read_data([spec], seed=1)
        pairs = sorted((pair.prompt, pair.response) for pair in data.pairs)
        assert pairs == [
            ("System: S\nUser: Ho\nAssistant:", "No."), ("User: Hi\nAssistant:", "Yes."), ("a", "b"),
        ]  # fmt: skip
        assert data.counts["sources"][0]["reasons"] == {"no response": 1}
        assert len(read_data([spec], seed=1, prompts_alone=True).pairs) == 4


def test_datasets_draws_in_the_same_order(tmp_path: Path) -> None:
    import datasets

    rows = datasets.Dataset.from_list(_rows(30))
    shuffled = rows.shuffle(seed=42)[:10]["prompt"]
    assert shuffled == [f"p{i}" for i in np.random.default_rng(42).permutation(30)[:10]]


def test_hashes_are_of_the_texts(tmp_path: Path) -> None:
    one = read_data([_write(tmp_path / "one.jsonl", _rows(5))], seed=1).counts
    two = read_data([_write(tmp_path / "two.jsonl", _rows(5))], seed=1).counts
    other = read_data([_write(tmp_path / "three.jsonl", _rows(5, "q"))], seed=1).counts
    assert one["sha256"] == two["sha256"] != other["sha256"]
    assert one["sources"][0]["sha256"] == two["sources"][0]["sha256"] != other["sources"][0]["sha256"]


def test_too_few_usable_rows_name_the_source_and_both_numbers(mixed: str) -> None:
    path = Path(mixed)
    path.write_text(path.read_text().replace("count = 3", "count = 5"))
    with pytest.raises(DataError, match=r"^a: 5 pairs asked for, 4 usable of 6 rows \(1 no .*, 1 no .*\)$"):
        read_data([mixed], seed=42)


@pytest.mark.parametrize(
    ("rows", "found"), [([], "0 rows"), ([{"prompt": "", "response": "b"}], r"1 rows \(1 no prompt\)")]
)
def test_no_usable_row_is_an_error_f16(tmp_path: Path, rows: list[dict[str, Any]], found: str) -> None:
    source_spec = _write(tmp_path / "mine.jsonl", rows)
    with pytest.raises(DataError, match=f"^mine.jsonl: 0 usable of {found}$"):
        read_data([source_spec], seed=42)


def test_no_source_is_an_error() -> None:
    with pytest.raises(DataError, match="no training data"):
        read_data([], seed=42)


def test_a_bad_row_names_file_line_and_field(tmp_path: Path) -> None:
    source_spec = _write(tmp_path / "mine.jsonl", [*_rows(16), {"prompt": "a", "response": ["b"]}])
    with pytest.raises(DataError, match=r"^mine.jsonl:17: response: list instead of text$"):
        read_data([source_spec], seed=42)


def test_render_makes_the_prompt_of_a_conversation(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}]
    source_spec = _write(tmp_path / "mine.jsonl", [{"messages": messages}])

    def render(turns: Sequence[Turn]) -> str:
        return "|".join(turn.text for turn in turns)

    assert read_data([source_spec], 42).pairs == [Pair("User: Hi\nAssistant:", "Yes.", "mine.jsonl:1")]
    assert read_data([source_spec], 42, render).pairs == [Pair("Hi", "Yes.", "mine.jsonl:1")]
