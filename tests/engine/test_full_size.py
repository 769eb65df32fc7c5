"""Random checkpoints in the published layout and the published sizes (1B-1B): they load, and one step has the shapes.

Gigabytes of weights and minutes of CPU, hence `make test-slow`. The table of names and shapes is the format's, written
out here and nowhere derived.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, T5Gemma2ForConditionalGeneration

from benchmarks.shapes import write_draft, write_verifier
from plugin.drafts.checkpoint import read_draft
from plugin.drafts.families import FAMILIES
from tests.engine.harness import Job, engine

pytestmark = [pytest.mark.engine, pytest.mark.slow]

VOCABULARY, DRAFT_VOCABULARY, HIDDEN, MLP, HEAD, RANK = 262_144, 32_000, 1152, 6912, 256, 256
LAYERS = {"dflash": 5, "dspark": 5, "dflare": 6}
TAPS = {"dflash": 5, "dspark": 5, "dflare": 8}


def published(family: str) -> dict[str, tuple[int, ...]]:
    """Every tensor of a published draft but the vocabulary maps."""
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (VOCABULARY, HIDDEN),
        "lm_head.weight": (DRAFT_VOCABULARY, HIDDEN),
        "norm.weight": (HIDDEN,),
        "hidden_norm.weight": (HIDDEN,),
    }
    for i in range(LAYERS[family]):
        layer = f"layers.{i}."
        shapes |= {
            f"{layer}input_layernorm.weight": (HIDDEN,),
            f"{layer}post_attention_layernorm.weight": (HIDDEN,),
            f"{layer}self_attn.q_proj.weight": (1024, HIDDEN),
            f"{layer}self_attn.k_proj.weight": (HEAD, HIDDEN),
            f"{layer}self_attn.v_proj.weight": (HEAD, HIDDEN),
            f"{layer}self_attn.o_proj.weight": (HIDDEN, 1024),
            f"{layer}self_attn.q_norm.weight": (HEAD,),
            f"{layer}self_attn.k_norm.weight": (HEAD,),
            f"{layer}mlp.gate_proj.weight": (MLP, HIDDEN),
            f"{layer}mlp.up_proj.weight": (MLP, HIDDEN),
            f"{layer}mlp.down_proj.weight": (HIDDEN, MLP),
        }
        if family == "dflare":
            shapes[f"{layer}self_attn.k_proj_target.weight"] = (HEAD, HIDDEN)
            shapes[f"{layer}self_attn.v_proj_target.weight"] = (HEAD, HIDDEN)
    if family == "dflare":
        return shapes | {"layer_fusion_weights": (6, 8)}
    shapes["fc.weight"] = (HIDDEN, 5 * HIDDEN)
    if family == "dspark":
        shapes |= {
            "markov_head.markov_w1.weight": (VOCABULARY, RANK),
            "markov_head.markov_w2.weight": (DRAFT_VOCABULARY, RANK),
            "confidence_head.proj.weight": (1, HIDDEN + RANK),
            "confidence_head.proj.bias": (1,),
        }
    return shapes


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A 1B-1B verifier with random bfloat16 weights, without the vision tower's."""
    folder = write_verifier(tmp_path_factory.mktemp("full") / "verifier")
    with torch.device("meta"):
        model = T5Gemma2ForConditionalGeneration(AutoConfig.from_pretrained(folder))
    skipped = ("vision_tower", "multi_modal_projector", "lm_head", "decoder.embed_tokens")
    tensors = {
        name.replace(".text_model.", "."): torch.empty(weight.shape, dtype=torch.bfloat16).normal_(0, 0.02)
        for name, weight in model.named_parameters()
        if not any(part in name for part in skipped)
    }
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_a_published_size_loads_and_drafts(verifier: Path, tmp_path: Path, family: str) -> None:
    """Random weights accept nothing, so the shapes are the point: blocks of K tokens, mapped through `d2t`."""
    draft = write_draft(tmp_path / family, family, verifier)
    tensors = {
        name: torch.empty(shape, dtype=torch.bfloat16).normal_(0, 0.02)
        for name, shape in published(family).items()
    }
    targets = torch.arange(DRAFT_VOCABULARY) * 8
    tensors["d2t"] = targets - torch.arange(DRAFT_VOCABULARY)
    tensors["t2d"] = torch.zeros(VOCABULARY, dtype=torch.bool).index_fill_(0, targets, True)
    save_file(tensors, draft / "model.safetensors")
    config = json.loads((draft / "config.json").read_text())
    assert len(config["aux_hidden_state_layer_ids"]) == TAPS[family]
    facts = read_draft(draft)
    assert (facts.family, facts.default_k) == (family, 7)

    sizes = {"skip_tokenizer_init": True, "dtype": "bfloat16", "kv_cache_memory_bytes": 1 << 30}
    with engine(verifier, draft, 7, max_model_len=64, max_encoder_len=64, max_num_seqs=2, **sizes) as running:
        answers = running.run(
            [Job((2, *range(100, 120)), 4, ignore_eos=True), Job((2, 5, 9), 4, ignore_eos=True)]
        )
        assert [len(answer.tokens) for answer in answers] == [4, 4]
        assert all(len(block.tokens) == 7 for block in running.blocks) and running.blocks
        assert all(token % 8 == 0 for block in running.blocks for token in block.tokens)  # through d2t
        model = running.runner.drafter.model
        assert model.draft_id_to_target_id.shape == (DRAFT_VOCABULARY,)
        assert len(model.model.layers) == LAYERS[family]
