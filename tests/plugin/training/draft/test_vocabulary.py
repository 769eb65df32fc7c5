"""The reduced vocabulary and its two tables."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from plugin.training.draft.vocabulary import draft_vocabulary, read_vocabulary, vocabulary_tables


def test_the_most_frequent_tokens_are_kept() -> None:
    t2d, d2t = draft_vocabulary([[5, 5, 9], [5, 9, 7], [3]], vocabulary_size=12, draft_size=3)
    assert t2d.nonzero().flatten().tolist() == [3, 5, 9]  # 3 and 7 tie, the lower id wins
    assert [i + int(offset) for i, offset in enumerate(d2t)] == [3, 5, 9]


def test_unseen_tokens_fill_up_by_id() -> None:
    t2d, _ = draft_vocabulary([[6]], vocabulary_size=8, draft_size=3)
    assert t2d.nonzero().flatten().tolist() == [0, 1, 6]


def test_a_draft_vocabulary_larger_than_the_targets_is_refused() -> None:
    with pytest.raises(ValueError, match="draft_vocab_size: 9 is not between 1 and vocab_size 8"):
        draft_vocabulary([[1]], 8, 9)


def test_a_vocabulary_from_a_file(tmp_path: Path) -> None:
    """A draft's weights, `speculators`' tables and counts, and JSON: the same tokens, ascending."""
    table = torch.zeros(6, dtype=torch.bool).index_fill(0, torch.tensor([1, 4, 5]), True)
    counts = {5: 9, 1: 4, 4: 4, 2: 1}
    save_file({"t2d": table}, tmp_path / "model.safetensors")
    np.save(tmp_path / "t2d-3.npy", table.numpy())
    torch.save({"t2d": table, "d2t": torch.tensor([1, 3, 3])}, tmp_path / "mapping.pt")
    torch.save(counts, tmp_path / "token_freq.pt")
    (tmp_path / "list.json").write_text("[5, 1, 4]")
    (tmp_path / "counts.json").write_text(json.dumps(counts))
    for name in ("model.safetensors", "t2d-3.npy", "mapping.pt", "list.json"):
        assert read_vocabulary(tmp_path / name, 6) == [1, 4, 5], name
    for name in ("token_freq.pt", "counts.json"):
        assert read_vocabulary(tmp_path / name, 6, 3) == [1, 4, 5], name
    t2d, d2t = vocabulary_tables([1, 4, 5], 6)
    assert torch.equal(t2d, table) and d2t.tolist() == [1, 3, 3]


@pytest.mark.parametrize(
    ("name", "text", "size", "words"),
    [
        ("a.json", "[1, 9]", None, "its tokens are not some of 0 ... 5"),
        ("a.json", "[]", None, "its tokens are not some of 0 ... 5"),
        ("a.json", "[1, 2]", 3, "names 2 tokens, --draft-vocab is 3"),
        ("a.json", '{"1": 2}', None, "holds counts; give --draft-vocab, too"),
        ("a.json", "[", None, "no vocabulary can be read"),
        ("a.txt", "1", None, "its name ends in none of"),
        ("a.safetensors", "1", None, "no vocabulary can be read"),
    ],
)
def test_a_file_without_a_vocabulary_is_named(
    tmp_path: Path, name: str, text: str, size: int | None, words: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=rf"{name}: .*{re.escape(words)}"):
        read_vocabulary(tmp_path / name, 6, size)
