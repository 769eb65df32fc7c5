"""The shape of a new draft: the published one for the published verifier, its like for others."""

from __future__ import annotations

import pytest
import torch
from transformers import T5Gemma2ForConditionalGeneration

from plugin.training.draft.shape import aux_layers, draft_layers, new_draft, new_shape

RESPONSES = [[20, 21, 20, 1], [30, 20, 1]]


def test_the_published_shapes() -> None:
    assert [draft_layers(family, 26) for family in ("dflash", "dspark", "dflare")] == [5, 5, 6]
    assert aux_layers("dflash", 26) == aux_layers("dspark", 26) == (2, 7, 13, 18, 21)
    assert aux_layers("dflare", 26) == (2, 5, 8, 11, 14, 17, 20, 22)


@pytest.mark.parametrize("depth", range(1, 61))
def test_other_depths_stay_inside_the_decoder(depth: int) -> None:
    for family in ("dflash", "dflare"):
        layers = aux_layers(family, depth)  # type: ignore[arg-type]
        assert layers and list(layers) == sorted(set(layers)) and layers[0] >= 0 and layers[-1] < depth
        assert draft_layers(family, depth) >= 2  # type: ignore[arg-type]


def test_weights_come_from_the_seed_and_tables_from_the_verifier(
    verifier: T5Gemma2ForConditionalGeneration,
) -> None:
    table = verifier.get_input_embeddings().weight.detach()
    before = torch.random.get_rng_state()
    shape = new_shape("dflare", verifier.config.decoder, mask_token_id=4, draft_vocab_size=40)
    drafts = [new_draft(shape, table, RESPONSES, seed) for seed in (1, 1, 2)]
    assert torch.equal(torch.random.get_rng_state(), before)
    states = [draft.state_dict() for draft in drafts]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not torch.equal(states[0]["layers.0.mlp.up_proj.weight"], states[2]["layers.0.mlp.up_proj.weight"])
    assert torch.equal(states[0]["embed_tokens.weight"], table)
    assert drafts[0].t2d[[1, 20, 21, 30]].all() and int(drafts[0].t2d.sum()) == 40
    assert (drafts[0].config.num_hidden_layers, drafts[0].config.num_aux_layers) == (2, 6)


def test_a_vocabulary_is_never_larger_than_the_verifiers(verifier: T5Gemma2ForConditionalGeneration) -> None:
    decoder = verifier.config.decoder
    assert new_shape("dflash", decoder, mask_token_id=4).draft_vocab_size == 64
    with pytest.raises(ValueError, match="draft_vocab_size: 65"):
        new_shape("dflash", decoder, mask_token_id=4, draft_vocab_size=65)
    with pytest.raises(ValueError, match=r"aux layers: \[5, 2\] are not ascending layers of 0 ... 5"):
        new_shape("dflash", decoder, mask_token_id=4, aux=(5, 2))
