"""The reduced vocabulary and its two tables."""

from __future__ import annotations

import pytest

from plugin.training.draft.vocabulary import draft_vocabulary


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
