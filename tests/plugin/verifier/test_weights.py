"""Checkpoint names to modules: C04's ways to store the tied table, and tensors that are missing or unknown."""

import pytest
import torch

from plugin.verifier.model import WEIGHTS, _one_table

TABLE = torch.arange(6.0).view(3, 2)


def names(*weights):
    return [name for name, _ in _one_table(weights)]


@pytest.mark.parametrize(
    ("stored", "module"),
    [
        ("model.encoder.embed_tokens.weight", "embed_tokens.weight"),
        ("model.encoder.text_model.embed_tokens.eoi_embedding", "embed_tokens.eoi_embedding"),
        ("model.encoder.layers.3.self_attn.k_proj.weight", "encoder.layers.3.self_attn.qkv_proj.weight"),
        ("model.encoder.text_model.norm.weight", "encoder.norm.weight"),
        ("model.decoder.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.gate_up_proj.weight"),
        ("model.decoder.norm.weight", "model.norm.weight"),
        ("lm_head.out_proj.weight", "embed_tokens.weight"),
        ("model.encoder.vision_tower.embeddings.patch_embedding.weight", None),
        ("model.encoder.multi_modal_projector.mm_input_projection_weight", None),
    ],
)
def test_both_ways_of_naming_find_their_module(stored, module):
    assert WEIGHTS.map_name(stored) == module


def test_c04_equal_copies_of_the_table_are_loaded_once():
    got = names(
        ("model.encoder.embed_tokens.weight", TABLE), ("model.decoder.embed_tokens.weight", TABLE.clone())
    )
    assert got == ["model.encoder.embed_tokens.weight"]


@pytest.mark.parametrize("other", ["model.decoder.embed_tokens.weight", "lm_head.out_proj.weight"])
def test_c04_a_different_copy_is_refused_naming_both_tensors(other):
    with pytest.raises(ValueError, match=rf"{other} differs from model\.encoder\.embed_tokens\.weight"):
        names(("model.encoder.embed_tokens.weight", TABLE), (other, TABLE + 1))
