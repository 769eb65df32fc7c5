"""Samples: split, padded, ordered."""

from __future__ import annotations

import logging

import pytest
import torch

from plugin.training.samples import (
    IGNORED_LABEL,
    Sample,
    batches,
    collate,
    epoch_order,
    length_batches,
    split_samples,
)


def _samples(count: int) -> list[Sample]:
    return [Sample([2, 10 + i], [20 + i, *range(i % 4), 1]) for i in range(count)]


def test_split_of_five_is_reproducible_f16() -> None:
    train, validation = split_samples(_samples(5), 0.9, seed=42)
    assert (len(train), len(validation)) == (4, 1)
    assert split_samples(_samples(5), 0.9, seed=42) == (train, validation)
    assert sorted(s.prompt[1] for s in train + validation) == [10, 11, 12, 13, 14]


@pytest.mark.parametrize(("count", "fraction"), [(1, 0.9), (5, 1.0)])
def test_an_empty_validation_set_is_said_aloud_f16(
    count: int, fraction: float, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        train, validation = split_samples(_samples(count), fraction)
    assert (len(train), len(validation)) == (count, 0)
    assert "no validation" in caplog.text


def test_no_samples_and_bad_fractions_are_refused_f16() -> None:
    with pytest.raises(ValueError, match="samples: none given"):
        split_samples([])
    with pytest.raises(ValueError, match=r"train_fraction: 0.0"):
        split_samples(_samples(3), 0.0)


def test_collate_pads_right_and_marks_what_counts() -> None:
    batch = collate([Sample([2, 5, 6], [7, 1]), Sample([2], [8, 9, 1])], pad_id=0, start_id=2)
    assert batch.prompts.tolist() == [[2, 5, 6], [2, 0, 0]]
    assert batch.prompt_mask.tolist() == [[True] * 3, [True, False, False]]
    assert batch.tokens.tolist() == [[2, 7, 1, 0], [2, 8, 9, 1]]
    assert batch.documents.tolist() == [[0, 0, 0, -1], [1, 1, 1, 1]]
    assert batch.positions.tolist() == [[0, 1, 2, 3]] * 2
    assert batch.loss_mask.tolist() == [[False, True, True, False], [False, True, True, True]]
    assert batch.labels().tolist() == [[7, 1, IGNORED_LABEL, IGNORED_LABEL], [8, 9, 1, IGNORED_LABEL]]


def test_collate_cuts_at_given_lengths() -> None:
    batch = collate([Sample([2, 5, 6], [7, 8, 1])], 0, 2, prompt_length=2, decoder_length=3)
    assert batch.prompts.tolist() == [[2, 5]]
    assert batch.tokens.tolist() == [[2, 7, 8]]
    moved = batch.to(torch.device("cpu"))
    assert torch.equal(moved.tokens, batch.tokens)


def test_epoch_order_depends_on_seed_and_epoch_alone() -> None:
    assert epoch_order(50, 1, 0) == epoch_order(50, 1, 0)
    assert epoch_order(50, 1, 0) != epoch_order(50, 1, 1) != epoch_order(50, 2, 1)
    assert sorted(epoch_order(50, 1, 3)) == list(range(50))


def test_batches_cover_everything_once() -> None:
    samples = _samples(7)
    groups = list(batches(samples, 3, epoch_order(7, 0, 0)))
    assert [len(group) for group in groups] == [3, 3, 1]
    assert sorted(s.prompt[1] for group in groups for s in group) == list(range(10, 17))


def test_length_batches_are_full_distinct_and_of_like_length() -> None:
    samples = _samples(64)
    groups = list(length_batches(samples, 8, seed=0, epoch=0))
    assert sorted(index for group in groups for index in group) == list(range(64))
    assert all(len({len(samples[index].response) for index in group}) == 1 for group in groups)
    assert groups == list(length_batches(samples, 8, seed=0, epoch=0))
