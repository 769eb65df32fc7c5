"""Packing against a plain loop, and packed rows against the same samples one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import T5Gemma2ForConditionalGeneration

from plugin.drafts.families import FAMILIES
from plugin.training.data.samples import Sample
from plugin.training.draft.anchors import make_blocks
from plugin.training.draft.model import TrainableDraft
from plugin.training.run.step import BlockStep
from plugin.training.settings import DraftSettings
from plugin.training.verifier.extraction import Extractor
from plugin.training.verifier.packing import OPEN_ROWS, epoch_rows, pack, packed_rows, packed_states

SAMPLES = [
    Sample([2, 9, 10, 11], [20, 21, 22, 23, 24, 25, 26, 1], "a"),
    Sample([2, 9], [30, 31, 1], "b"),
    Sample([2, 12, 13, 14, 15, 16], [40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 1], "c"),
    Sample([2, 17, 18], [50, 51, 52, 53, 1], "d"),
]


def _plain_first_fit(lengths: list[int], total: int) -> list[list[int]]:
    """The same rule with nothing but lists: every open row is asked in turn whether the sample fits."""
    closed: list[list[int]] = []
    opened: list[list[int]] = []
    for index, length in enumerate(lengths):
        fitting = [row for row in opened if sum(lengths[other] for other in row) + length <= total]
        if fitting:
            fitting[0].append(index)
            continue
        if len(opened) == OPEN_ROWS:
            closed.append(opened.pop(0))
        opened.append([index])
    return closed + opened


@given(st.lists(st.integers(1, 20), max_size=200))
def test_pack_against_a_plain_loop(lengths: list[int]) -> None:
    assert pack(lengths, range(len(lengths)), 20) == _plain_first_fit(lengths, 20)


def test_rows_of_an_epoch_hold_every_sample_once_and_depend_on_seed_and_epoch() -> None:
    lengths = [1 + 7 * index % 50 for index in range(500)]
    rows = epoch_rows(lengths, 64, seed=3, epoch=1)
    assert sorted(index for row in rows for index in row) == list(range(500))
    assert all(sum(lengths[index] for index in row) <= 64 for row in rows)
    assert sum(lengths) / (64 * len(rows)) > 0.9
    assert rows == epoch_rows(lengths, 64, seed=3, epoch=1)
    assert rows != epoch_rows(lengths, 64, seed=3, epoch=2) != epoch_rows(lengths, 64, seed=4, epoch=2)


def test_a_sample_longer_than_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match="a sample of 9 tokens does not fit into 8"):
        pack([3, 9], [0, 1], 8)


def test_columns_of_packed_rows_against_a_loop() -> None:
    rows = packed_rows([SAMPLES[:2], SAMPLES[2:3]], pad_id=0, start_id=2)
    assert rows.tokens.shape == (2, 16) and rows.ids == ("a", "b", "c")
    for row, group in enumerate([(0, 1), (2,)]):
        column = 0
        for number in group:
            assert rows.places[number] == (row, column)
            for position, token in enumerate([2, *SAMPLES[number].response]):
                assert rows.tokens[row, column] == token
                assert rows.documents[row, column] == number
                assert rows.positions[row, column] == position
                assert bool(rows.loss_mask[row, column]) == (position > 0)
                column += 1
        assert (rows.documents[row, column:] == -1).all() and not rows.loss_mask[row, column:].any()
        assert (rows.tokens[row, column:] == 0).all()
    part = rows.part(1, 1)
    assert part.ids == ("c",) and part.places == ((0, 0),) and torch.equal(part.tokens[0], rows.tokens[1])


@pytest.mark.parametrize("micro_batch", [1, 3])
def test_packed_states_are_those_of_each_sample_alone(
    verifier: T5Gemma2ForConditionalGeneration, micro_batch: int
) -> None:
    extractor = Extractor(verifier, (0, 2, 5))
    rows = packed_rows([SAMPLES[:2], SAMPLES[2:]], 0, 2)
    found = packed_states(extractor, rows, micro_batch)
    assert found.finite.tolist() == [True] * 4
    for sample, (row, column) in zip(SAMPLES, rows.places, strict=True):
        tokens = torch.tensor([[2, *sample.response]])
        prompt = torch.tensor([sample.prompt])
        alone = extractor(prompt, torch.ones_like(prompt, dtype=torch.bool), tokens)
        here = slice(column, column + tokens.shape[1])
        assert (found.aux[row, here] - alone.aux[0]).abs().max() < 1e-4
        assert (found.states[row, here] - alone.states[0]).abs().max() < 1e-4
    assert not found.aux[rows.documents < 0].any() and not found.states[rows.documents < 0].any()


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_and_unpacked_losses_agree_at_the_same_anchors_f11(
    verifier: T5Gemma2ForConditionalGeneration, make_draft: Callable[..., TrainableDraft], family: str
) -> None:
    """Two samples packed together do not see each other (F11)."""
    draft = make_draft(family).eval()
    settings = DraftSettings(precision="float32", extractor_batch=2)
    step = BlockStep(draft, Extractor(verifier, (0, 2, 5)), settings)
    anchors = {"a": (1, 4), "b": (2, 1), "c": (5, 7), "d": (1, 3)}
    losses = []
    for groups in ([SAMPLES[:2], SAMPLES[2:]], [[sample] for sample in SAMPLES]):
        rows = packed_rows(groups, 0, 2)
        columns: list[list[int]] = [[] for _ in groups]
        for sample, (row, first) in zip(rows.samples, rows.places, strict=True):
            columns[row] += [first + anchor for anchor in anchors[sample.id]]
        chosen = torch.tensor(columns)
        valid = torch.ones_like(chosen, dtype=torch.bool)
        blocks = make_blocks(rows.tokens, rows.documents, rows.positions, chosen, valid, 8, 4)
        with torch.no_grad():
            result = step(rows, blocks, judge=True)
        assert result.correct is not None
        losses.append({**result.terms, "slots": blocks.loss_mask.sum(), "right": result.correct.sum()})
    for name, value in losses[0].items():
        assert float(value) == pytest.approx(float(losses[1][name]), abs=1e-6), name
