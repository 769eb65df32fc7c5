"""Blocks and masks, element by element against plain loops."""

from __future__ import annotations

import torch

from plugin.training.draft.anchors import all_anchors, context_mask, make_blocks, sample_anchors

# Two rows: one sample of 12 tokens with padding; two samples packed into one row.
DOCUMENTS = torch.tensor([[0] * 12 + [-1] * 3, [1] * 7 + [2] * 8])
POSITIONS = torch.tensor([list(range(15)), [*range(7), *range(8)]])
TOKENS = torch.arange(100, 130).view(2, 15)
LOSS_MASK = (DOCUMENTS >= 0) & (POSITIONS > 0)
BLOCK, MASK_ID = 4, 4


def test_training_blocks_are_the_blocks_of_serving_f19() -> None:
    """Slot 0 is the anchor and carries no loss, slot k predicts the token at a + k, padding beyond the end (F19)."""
    sequence = [2, *range(50, 62), 1]  # start token, 12 tokens, end token
    tokens = torch.tensor([sequence])
    length = len(sequence)
    anchor = 5
    blocks = make_blocks(
        tokens, torch.zeros(1, length, dtype=torch.long), torch.arange(length)[None], torch.tensor([[anchor]]),
        torch.tensor([[True]]), 8, MASK_ID,
    )  # fmt: skip
    # What serving lays out after accepting sequence[:anchor + 1]: the anchor, then K = 7 masks at the next positions.
    accepted = sequence[: anchor + 1]
    assert blocks.inputs[0, 0].tolist() == [accepted[-1], *[MASK_ID] * 7]
    assert blocks.positions[0, 0].tolist() == [len(accepted) - 1 + slot for slot in range(8)]
    # What serving compares its drafts with: the verifier's next tokens.
    assert blocks.targets[0, 0, 1:].tolist() == sequence[anchor + 1 : anchor + 8]
    assert blocks.loss_mask[0, 0].tolist() == [False, *[True] * 7]

    shifted = [sequence[anchor + slot + 1] for slot in range(1, 8)]
    assert blocks.targets[0, 0, 1:].tolist() != shifted, "a shift by one would go unnoticed"

    late = make_blocks(
        tokens, torch.zeros(1, length, dtype=torch.long), torch.arange(length)[None], torch.tensor([[10]]),
        torch.tensor([[True]]), 8, MASK_ID,
    )  # fmt: skip
    assert late.loss_mask[0, 0].tolist() == [False, True, True, True, False, False, False, False]
    assert late.targets[0, 0, 1:4].tolist() == [60, 61, 1]


def _blocks(columns: torch.Tensor):
    return make_blocks(
        TOKENS, DOCUMENTS, POSITIONS, columns, torch.ones_like(columns, dtype=torch.bool), BLOCK, MASK_ID
    )


def test_blocks_against_a_loop() -> None:
    columns = torch.tensor([[1, 5, 10], [2, 5, 9]])
    blocks = _blocks(columns)
    for row in range(2):
        for number, column in enumerate(columns[row].tolist()):
            for slot in range(BLOCK):
                where = column + slot
                inside = where < 15 and DOCUMENTS[row, where] == DOCUMENTS[row, column]
                assert bool(blocks.loss_mask[row, number, slot]) == (slot > 0 and inside)
                assert blocks.positions[row, number, slot] == POSITIONS[row, column] + slot
                assert blocks.inputs[row, number, slot] == (MASK_ID if slot else TOKENS[row, column])
                if inside:
                    assert blocks.targets[row, number, slot] == TOKENS[row, where]


def test_context_mask_against_a_loop() -> None:
    columns = torch.tensor([[1, 5, 10], [2, 5, 9]])
    mask = context_mask(_blocks(columns), DOCUMENTS, POSITIONS)
    assert mask.shape == (2, 3, 15)
    for row in range(2):
        for number, column in enumerate(columns[row].tolist()):
            for key in range(15):
                seen = (
                    DOCUMENTS[row, key] == DOCUMENTS[row, column]
                    and POSITIONS[row, key] < POSITIONS[row, column]
                )
                assert bool(mask[row, number, key]) == bool(seen), (row, number, key)


def test_anchors_are_response_tokens_with_a_successor() -> None:
    generator = torch.Generator().manual_seed(0)
    columns, valid = sample_anchors(LOSS_MASK, DOCUMENTS, 15, BLOCK, generator)
    assert sorted(columns[0][valid[0]].tolist()) == list(range(1, 11))
    assert sorted(columns[1][valid[1]].tolist()) == [1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13]
    listed, possible = all_anchors(LOSS_MASK, DOCUMENTS)
    for row in range(2):
        assert listed[row][possible[row]].tolist() == sorted(columns[row][valid[row]].tolist())


def test_whole_blocks_stay_off_the_end() -> None:
    generator = torch.Generator().manual_seed(0)
    columns, valid = sample_anchors(LOSS_MASK, DOCUMENTS, 15, BLOCK, generator, whole_blocks=True)
    assert sorted(columns[0][valid[0]].tolist()) == list(range(1, 9))
    assert sorted(columns[1][valid[1]].tolist()) == [1, 2, 3, 8, 9, 10, 11]


def test_anchors_are_drawn_without_replacement_and_by_seed() -> None:
    draw = [
        sample_anchors(LOSS_MASK, DOCUMENTS, 4, BLOCK, torch.Generator().manual_seed(9)) for _ in range(2)
    ]
    assert torch.equal(draw[0][0], draw[1][0])
    assert all(len(set(row)) == 4 for row in draw[0][0].tolist())
    other, _ = sample_anchors(LOSS_MASK, DOCUMENTS, 4, BLOCK, torch.Generator().manual_seed(10))
    assert not torch.equal(draw[0][0], other)


def test_a_row_too_short_for_a_block_has_no_whole_anchor() -> None:
    mask = torch.tensor([[False, True, True]])
    _, valid = sample_anchors(
        mask, torch.zeros(1, 3), 2, 8, torch.Generator().manual_seed(0), whole_blocks=True
    )
    assert not valid.any()
