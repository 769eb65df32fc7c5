"""Drafts of published shape for the engine benchmark: their config.json against the published numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.shapes import write_draft, write_verifier
from plugin.drafts.families import FAMILIES, Family


@pytest.mark.parametrize("family", FAMILIES)
def test_published_draft(tmp_path: Path, family: Family) -> None:
    facts = FAMILIES[family]
    verifier = write_verifier(tmp_path / "verifier")
    config: dict[str, Any] = json.loads(
        (write_draft(tmp_path / family, family, verifier) / "config.json").read_text()
    )
    speculators, layer = config["speculators_config"], config["transformer_layer_config"]
    (proposal,) = speculators["proposal_methods"]
    assert config == config | {
        "architectures": [facts.speculators_class],
        "aux_hidden_state_layer_ids": list(facts.published.aux_layer_ids),
        "block_size": 8,
        "draft_vocab_size": 32_000,
        "dtype": "bfloat16",
        "mask_token_id": 4,
        "sliding_window_non_causal": False,
        "speculators_model_type": family,
        "target_hidden_size": None,
        "tie_word_embeddings": False,
    }
    assert (speculators["algorithm"], proposal["speculative_tokens"]) == (family, 7)
    assert speculators["verifier"]["name_or_path"] == str(verifier)
    assert layer == layer | {
        "model_type": "llama",
        "head_dim": 256,
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "layer_types": ["full_attention"] * facts.published.num_layers,
        "max_position_embeddings": 32_768,
        "num_attention_heads": 4,
        "num_hidden_layers": facts.published.num_layers,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"factor": 8.0, "rope_theta": 1_000_000.0, "rope_type": "linear"},
        "sliding_window": 2048,
        "vocab_size": 262_144,
    }
    markov = {
        "markov_rank": 256,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }
    assert {name: config[name] for name in markov if name in config} == (markov if family == "dspark" else {})
