"""What training computes for a block is what the formulas give, slot by slot (F19).

`tests/engine/test_fitted_drafts.py` compares serving with the same formulas, so training and serving agree as well.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from plugin.training.draft.anchors import Blocks, make_blocks
from plugin.training.draft.checkpoint import load_draft
from plugin.training.draft.model import TrainableDraft
from plugin.training.verifier.extraction import Extractor
from tests.reference.draft_block import DraftReference, aux_states
from tests.reference.greedy import GreedyReference
from tests.reference.prompts import prompt_ids
from tests.reference.tiny import BOS, MASK
from tests.reference.tiny_drafts import SPECS, verifier_table, write_draft

BLOCK = 8
NAMES = ("dflash", "dflash-3", "dspark", "dspark-gated", "dspark-rnn", "dflare", "dflare-3")
PROMPT = prompt_ids(30, 4)
TOKENS = (BOS, *prompt_ids(24, 5)[1:])
ANCHORS = (1, 2, 7, 15)
TOLERANCE = 1e-4


@pytest.fixture(params=NAMES)
def draft(
    request: pytest.FixtureRequest, verifier: Path, tmp_path: Path
) -> tuple[TrainableDraft, DraftReference]:
    """One checkpoint, read by the training code and by the reference."""
    folder = write_draft(tmp_path / request.param, SPECS[request.param], verifier)
    return load_draft(folder), DraftReference.load(folder, verifier_table(verifier))


def blocks_at(columns: tuple[int, ...]) -> Blocks:
    """Training's blocks at `columns` of one row."""
    tokens = torch.tensor([TOKENS])
    return make_blocks(
        tokens,
        torch.zeros_like(tokens),
        torch.arange(len(TOKENS))[None],
        torch.tensor([columns]),
        torch.ones(1, len(columns), dtype=torch.bool),
        BLOCK,
        MASK,
    )


@torch.no_grad()
def trained_logits(model: TrainableDraft, reference: GreedyReference, blocks: Blocks) -> torch.Tensor:
    """`[anchors, BLOCK, draft vocabulary]` as the training step computes them."""
    extractor = Extractor(reference.model, model.config.aux_hidden_state_layer_ids)
    prompts, tokens = torch.tensor([PROMPT]), torch.tensor([TOKENS])
    aux = extractor(prompts, torch.ones_like(prompts, dtype=torch.bool), tokens).aux
    states = model(aux, torch.zeros_like(tokens), torch.arange(len(TOKENS))[None], blocks)
    return model.draft_logits(states, blocks)[0][0]


def served_logits(draft: DraftReference, reference: GreedyReference, anchor: int) -> torch.Tensor:
    """`[BLOCK - 1, draft vocabulary]` by the formulas, with the true token before each slot."""
    aux = aux_states(reference.model, PROMPT, TOKENS, draft.aux_layers)
    hidden = draft.block_hidden(aux[:anchor], TOKENS[anchor], BLOCK - 1)
    rows, state = [], draft.first_state(TOKENS[anchor], hidden[0])
    for k in range(BLOCK - 1):
        row = hidden[k + 1] @ draft.head.T
        if draft.family == "dspark":
            bias, state = draft.markov_bias(TOKENS[anchor + k], hidden[k + 1], state)
            row = row + bias
        rows.append(row)
    return torch.stack(rows)


def test_slots() -> None:
    """Inputs, labels and loss mask of each slot, next to what serving fills: [anchor, mask x K] at p .. p + K."""
    blocks = blocks_at(ANCHORS)
    for row, anchor in enumerate(ANCHORS):
        assert blocks.inputs[0, row].tolist() == [TOKENS[anchor]] + [MASK] * (BLOCK - 1)
        assert blocks.positions[0, row].tolist() == list(range(anchor, anchor + BLOCK))
        assert blocks.targets[0, row].tolist() == list(TOKENS[anchor : anchor + BLOCK])
        assert blocks.loss_mask[0, row].tolist() == [False] + [True] * (BLOCK - 1)


def test_logits(draft: tuple[TrainableDraft, DraftReference], reference: GreedyReference) -> None:
    model, formulas = draft
    trained = trained_logits(model, reference, blocks_at(ANCHORS))
    for row, anchor in enumerate(ANCHORS):
        served = served_logits(formulas, reference, anchor)
        for slot in range(1, BLOCK):
            assert torch.allclose(trained[row, slot], served[slot - 1], atol=TOLERANCE), (
                f"anchor {anchor}, slot {slot}"
            )


def test_control_shift_by_one(
    draft: tuple[TrainableDraft, DraftReference], reference: GreedyReference
) -> None:
    """A block one position later, or slots read one off, does not pass for the right one."""
    model, formulas = draft
    trained = trained_logits(model, reference, blocks_at(ANCHORS))
    for row, anchor in enumerate(ANCHORS):
        later, served = (
            served_logits(formulas, reference, anchor + 1),
            served_logits(formulas, reference, anchor),
        )
        assert not torch.allclose(trained[row, 1:], later, atol=TOLERANCE)
        assert not torch.allclose(trained[row, 1:-1], served[1:], atol=TOLERANCE)
