"""Samples: split, padded, ordered."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoTokenizer

from plugin.training.data.pairs import Pair
from plugin.training.data.samples import (
    Sample,
    batches,
    collate,
    cut_counts,
    encode,
    epoch_order,
    length_batches,
    split_samples,
)

DEMO = Path(__file__).parents[4] / "plugin" / "demo" / "verifier"


def _samples(count: int) -> list[Sample]:
    return [Sample([2, 10 + i], [20 + i, *range(i % 4), 1]) for i in range(count)]


class _Words:
    """Maps each letter to an id and starts a text with 2, as a tokenizer is called."""

    calls = 0

    def __call__(
        self,
        texts: list[str],
        truncation: bool,
        max_length: int,
        add_special_tokens: bool = True,
        split_special_tokens: bool = False,
    ) -> SimpleNamespace:
        type(self).calls += 1
        assert truncation and len(texts) <= 4096
        ids = [[2] * add_special_tokens + [ord(letter) for letter in text] for text in texts]
        cut = [SimpleNamespace(overflowing=[row[max_length:]] if row[max_length:] else []) for row in ids]
        return SimpleNamespace(input_ids=[row[:max_length] for row in ids], encodings=cut)


def test_encode_keeps_order_and_ids() -> None:
    pairs = [Pair(f"a{i}", "b", f"x:{i}") for i in range(4097)]
    samples = encode(_Words(), pairs, end_id=1)
    assert _Words.calls == 4, "two parts, prompts and responses each"
    assert [sample.id for sample in samples] == [pair.id for pair in pairs]
    assert samples[7] == Sample([2, ord("a"), ord("7")], [ord("b"), 1], "x:7")
    assert encode(_Words(), [], end_id=1) == []


def test_encode_cuts_and_the_end_token_closes_a_cut_response() -> None:
    (sample,) = encode(_Words(), [Pair("a" * 9, "b" * 9)], end_id=1, prompt_length=4, response_length=3)
    assert sample == Sample([2, 97, 97, 97], [98, 98, 1], "", True, True)
    (whole,) = encode(_Words(), [Pair("a" * 3000, "b" * 3000)], end_id=1)
    assert len(whole.prompt) == 2048
    assert (len(whole.response), whole.response[-2:]) == (1024, [98, 1])


def test_encode_with_the_demo_tokenizer_keeps_its_start_token() -> None:
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    (long, short) = encode(tokenizer, [Pair("apple " * 50, "six " * 50), Pair("six", "6")], 1, 8, 5)
    assert len(long.prompt) == 8 and long.prompt[0] == tokenizer.bos_token_id == short.prompt[0]
    assert len(long.response) == 5 and long.response[-1] == 1 and 1 not in long.response[:-1]
    assert tokenizer.decode(short.response, skip_special_tokens=True).strip() == "6"


def test_what_is_cut_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    """By the tokenizer itself: a text of exactly the length is not cut (N37)."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    pairs = [Pair("six", "6"), Pair("six " * 9, "6"), Pair("six", "6 6 6 6 6"), Pair("six " * 9, "7 " * 9)]
    length = len(tokenizer("six").input_ids)
    samples = encode(
        tokenizer, pairs, 1, length, 1 + len(tokenizer("6 6", add_special_tokens=False).input_ids)
    )
    assert [(one.prompt_cut, one.response_cut) for one in samples] == [
        (False, False), (True, False), (False, True), (True, True),
    ]  # fmt: skip
    with caplog.at_level(logging.INFO):
        assert cut_counts(tokenizer, samples) == {"prompts": 2, "responses": 2, "side": "end"}
    assert (
        "of 4 samples 2 prompts and 2 responses are longer than they may be; their end is cut" in caplog.text
    )
    tokenizer.truncation_side = "left"
    assert cut_counts(tokenizer, samples[:1]) == {"prompts": 0, "responses": 0, "side": "beginning"}
    assert len(caplog.records) == 1


def test_a_written_end_token_is_text_in_a_response() -> None:
    """It would be a second end token there; in a prompt it is what serving makes of it (N40)."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    text = "Write <eos> and <mask> then <bos>."
    (sample,) = encode(tokenizer, [Pair(text, text)], end_id=1)
    assert sample.response[-1] == 1 and not {0, 1, 2, 3, 4} & set(sample.response[:-1])
    assert tokenizer.decode(sample.response[:-1]) == text
    assert sample.prompt == tokenizer(text).input_ids and 1 in sample.prompt


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
