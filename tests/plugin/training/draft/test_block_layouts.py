"""Blocks that are shorter, that predict from the anchor on, and that layers with a window see: against plain loops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from plugin.drafts.families import FAMILIES
from plugin.training.draft.anchors import (
    Blocks,
    context_mask,
    make_blocks,
    own_mask,
    sample_anchors,
    shortened,
)
from plugin.training.draft.model import TrainableDraft

LENGTH, BLOCK, MASK_ID = 24, 8, 4
TOKENS = torch.randint(5, 60, (2, LENGTH), generator=torch.Generator().manual_seed(2))
DOCUMENTS = torch.tensor([[0] * 20 + [-1] * 4, [1] * 11 + [2] * 13])
POSITIONS = torch.tensor([list(range(LENGTH)), [*range(11), *range(13)]])
COLUMNS = torch.tensor([[10, 13, 16], [3, 5, 14]])


def _blocks(size: int = BLOCK, ahead: int = 0) -> Blocks:
    valid = torch.ones_like(COLUMNS, dtype=torch.bool)
    return make_blocks(TOKENS, DOCUMENTS, POSITIONS, COLUMNS, valid, size, MASK_ID, ahead)


def _with_sizes(sizes: list[list[int]]) -> Blocks:
    whole = _blocks()
    return Blocks(
        whole.columns, whole.positions, whole.documents, whole.inputs, whole.targets, whole.loss_mask,
        torch.tensor(sizes),
    )  # fmt: skip


def _states(draft: TrainableDraft, blocks: Blocks) -> torch.Tensor:
    aux = torch.randn(
        2, LENGTH, draft.config.num_aux_layers, draft.config.hidden_size,
        generator=torch.Generator().manual_seed(3),
    )  # fmt: skip
    return draft(aux, DOCUMENTS, POSITIONS, blocks)


def test_blocks_from_the_anchor_predict_one_token_further() -> None:
    """Slot k at position p + k is to predict the token at p + k + 1, slot 0 included, from the token at p + k on."""
    blocks = _blocks(4, ahead=1)
    for row in range(2):
        for number, column in enumerate(COLUMNS[row].tolist()):
            for slot in range(4):
                where = column + slot + 1
                inside = where < LENGTH and DOCUMENTS[row, where] == DOCUMENTS[row, column]
                assert bool(blocks.loss_mask[row, number, slot]) == bool(inside)
                assert blocks.positions[row, number, slot] == POSITIONS[row, column] + slot
                if inside:
                    assert blocks.targets[row, number, slot] == TOKENS[row, where]
                    assert blocks.previous()[row, number, slot] == TOKENS[row, where - 1]


@pytest.mark.parametrize("ahead", [0, 1])
def test_whole_blocks_leave_room_for_the_last_prediction(ahead: int) -> None:
    mask = (DOCUMENTS >= 0) & (POSITIONS > 0)
    generator = torch.Generator().manual_seed(0)
    columns, valid = sample_anchors(mask, DOCUMENTS, LENGTH, BLOCK, generator, True, ahead)
    assert sorted(columns[0][valid[0]].tolist()) == list(range(1, 20 - (BLOCK - 1) - ahead))


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_share_of_blocks_is_drawn_shorter(ahead: int) -> None:
    """Of every number of slots that predicts, and none of the whole; slots that are not there do not count."""
    valid = torch.ones(1, 2000, dtype=torch.bool)
    columns = torch.full((1, 2000), 3)
    row = (TOKENS[:1], torch.zeros(1, LENGTH, dtype=torch.long), torch.arange(LENGTH)[None])
    blocks = make_blocks(*row, columns, valid, BLOCK, MASK_ID, ahead)
    found = shortened(blocks, 0.5, ahead, torch.Generator().manual_seed(0))
    assert found.sizes is not None
    counts = torch.bincount(found.sizes.flatten(), minlength=BLOCK + 1).tolist()
    assert sum(counts[: 2 - ahead]) == 0 and abs(counts[BLOCK] - 1000) < 100
    expected = 1000 / (BLOCK - 2 + ahead)
    assert all(0.6 * expected < count < 1.4 * expected for count in counts[2 - ahead : BLOCK])
    for number, size in enumerate(found.sizes[0, :50].tolist()):
        assert found.loss_mask[0, number].tolist() == [1 - ahead <= slot < size for slot in range(BLOCK)]
    again = shortened(blocks, 0.5, ahead, torch.Generator().manual_seed(0))
    assert again.sizes is not None and torch.equal(again.sizes, found.sizes)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shape", [{}, {"sliding_layers": (1,), "sliding_window": 3}])
def test_a_shorter_block_is_the_block_that_serving_makes(
    make_draft: Callable[..., TrainableDraft], family: str, shape: dict[str, object]
) -> None:
    """Its slots have the states of a block that was made with so many; a whole one beside it stays what it is."""
    draft = make_draft(family, **shape)
    whole, short = _states(draft, _blocks()), _states(draft, _blocks(3))
    found = _states(draft, _with_sizes([[3, 8, 3], [3, 8, 8]]))
    assert (found[:, 0, :3] - short[:, 0]).abs().max() < 1e-5
    assert (found[:, 1] - whole[:, 1]).abs().max() < 1e-5
    assert (found[:, 0, :3] - whole[:, 0, :3]).abs().max() > 1e-3, "nothing was shorter"
    assert bool(found.isfinite().all())


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [1, 3, 6, 100])
def test_a_window_against_a_loop(window: int, causal: bool) -> None:
    """A slot sees the tokens less than a window behind it, as vLLM counts it, its own included."""
    blocks = _with_sizes([[3, 8, 3], [3, 8, 8]])
    context = context_mask(blocks, DOCUMENTS, POSITIONS, window)
    own = own_mask(blocks, window, causal)
    assert own is not None
    own = own.expand(2, 3, BLOCK, BLOCK)
    for row in range(2):
        for number, column in enumerate(COLUMNS[row].tolist()):
            for slot in range(BLOCK):
                here = int(POSITIONS[row, column]) + slot
                for key in range(LENGTH):
                    same = DOCUMENTS[row, key] == DOCUMENTS[row, column]
                    seen = same and here - window < POSITIONS[row, key] < POSITIONS[row, column]
                    assert bool(context[row, number, slot, key]) == bool(seen)
                for other in range(BLOCK):
                    there = other < [[3, 8, 3], [3, 8, 8]][row][number]
                    near = abs(slot - other) < window and not (causal and other > slot)
                    assert bool(own[row, number, slot, other]) == (other == slot or (there and near))


def test_without_window_and_shorter_blocks_nothing_is_masked() -> None:
    assert own_mask(_blocks()) is None


def test_causal_layers_do_not_see_what_follows_in_the_block(
    make_draft: Callable[..., TrainableDraft],
) -> None:
    """With all layers sliding the first slots do not depend on how many follow; in both directions they do."""
    for non_causal in (False, True):
        shape = {"sliding_layers": (0, 1), "sliding_window": 100, "sliding_window_non_causal": non_causal}
        draft = make_draft("dflash", **shape)
        difference = (_states(draft, _blocks())[:, :, :3] - _states(draft, _blocks(3))).abs().max()
        assert bool(difference > 1e-3) == non_causal


def test_a_window_hides_older_states(make_draft: Callable[..., TrainableDraft]) -> None:
    """The block anchored at 16 with a window of 4 does not see column 12, and without a window it does."""
    for layers, hidden in (((0, 1), True), ((), False)):
        draft = make_draft("dflash", sliding_layers=layers, sliding_window=4)
        torch.manual_seed(3)
        aux = torch.randn(2, LENGTH, draft.config.num_aux_layers, draft.config.hidden_size)
        before = draft(aux, DOCUMENTS, POSITIONS, _blocks())[0, 2]
        aux[0, 12] += 5.0
        after = draft(aux, DOCUMENTS, POSITIONS, _blocks())[0, 2]
        assert bool((after - before).abs().max() < 1e-6) == hidden


def test_gradients_are_the_same_with_checkpoints(make_draft: Callable[..., TrainableDraft]) -> None:
    found = []
    for checkpointing in (False, True):
        draft = make_draft("dflare").train()
        draft.gradient_checkpointing = checkpointing
        _states(draft, _blocks()).square().sum().backward()
        found.append({name: p.grad for name, p in draft.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys() and found[0]
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
