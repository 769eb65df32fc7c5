"""Tiny checkpoint folders written with NumPy alone: real configs and safetensors files of a few kilobytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file

from plugin.drafts.checkpoint import CheckpointError, resolve

HIDDEN, VOCAB, DRAFT_VOCAB, LAYERS, AUX, RANK = 8, 40, 12, 6, (0, 2, 4), 3
CLASSES = {"dflash": "DFlashDraftModel", "dspark": "DSparkDraftModel", "dflare": "DFlareDraftModel"}
Arrays = dict[str, npt.NDArray[Any]]


def verifier_config() -> dict[str, Any]:
    """config.json of a text-only T5Gemma 2 with the keys that matter."""
    stack = {
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        "num_hidden_layers": LAYERS,
        "max_position_embeddings": 512,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2),
    }
    return {
        "architectures": ["T5Gemma2ForConditionalGeneration"],
        "model_type": "t5gemma2",
        "dtype": "float32",
        "encoder": {"text_config": dict(stack)},
        "decoder": dict(stack),
    }


def write_verifier(folder: Path, change: Callable[[dict[str, Any]], object] | None = None) -> Path:
    """A verifier folder; `change` edits the config before it is written."""
    folder.mkdir(parents=True, exist_ok=True)
    config = verifier_config()
    if change:
        change(config)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"model.encoder.embed_tokens.weight": zeros(VOCAB, HIDDEN)}, folder / "model.safetensors")
    (folder / "tokenizer.json").touch()
    return folder


def draft_config(family: str = "dflash", verifier: str = "../verifier") -> dict[str, Any]:
    """config.json of a draft in the published Speculators layout."""
    config: dict[str, Any] = {
        "architectures": [CLASSES[family]],
        "auto_map": {"": "config.SomeSpeculatorConfig"},
        "aux_hidden_state_layer_ids": list(AUX),
        "block_size": 8,
        "draft_vocab_size": DRAFT_VOCAB,
        "mask_token_id": 4,
        "sliding_window_non_causal": False,
        "speculators_config": {
            "algorithm": family,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 7}],
            "verifier": {"architectures": ["T5Gemma2ForConditionalGeneration"], "name_or_path": verifier},
        },
        "speculators_model_type": family,
        "target_hidden_size": None,
        "transformer_layer_config": {
            "hidden_size": HIDDEN,
            "intermediate_size": 16,
            "head_dim": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_hidden_layers": 2,
            "layer_types": ["full_attention", "full_attention"],
            "vocab_size": VOCAB,
            "hidden_act": "silu",
            "max_position_embeddings": 512,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        },
    }
    if family == "dspark":
        config |= {"markov_rank": RANK, "markov_head_type": "vanilla", "enable_confidence_head": True}
        config |= {"confidence_head_with_markov": True}
    return config


def draft_arrays(family: str = "dflash") -> Arrays:
    """Tensors of the published layout, written out by hand so that they do not follow the code under test."""
    targets = np.arange(1, 1 + 3 * DRAFT_VOCAB, 3)
    arrays: Arrays = {
        "embed_tokens.weight": zeros(VOCAB, HIDDEN),
        "lm_head.weight": zeros(DRAFT_VOCAB, HIDDEN),
        "d2t": (targets - np.arange(DRAFT_VOCAB)).astype(np.int64),
        "t2d": np.isin(np.arange(VOCAB), targets),
        "norm.weight": zeros(HIDDEN),
        "hidden_norm.weight": zeros(HIDDEN),
    }
    for i in range(2):
        shapes = {
            "input_layernorm": (8,),
            "post_attention_layernorm": (8,),
            "self_attn.q_proj": (16, 8),
            "self_attn.k_proj": (8, 8),
            "self_attn.v_proj": (8, 8),
            "self_attn.o_proj": (8, 16),
            "self_attn.q_norm": (4,),
            "self_attn.k_norm": (4,),
            "mlp.gate_proj": (16, 8),
            "mlp.up_proj": (16, 8),
            "mlp.down_proj": (8, 16),
        }
        if family == "dflare":
            shapes |= {"self_attn.k_proj_target": (8, 8), "self_attn.v_proj_target": (8, 8)}
        arrays |= {f"layers.{i}.{name}.weight": zeros(*shape) for name, shape in shapes.items()}
    if family == "dflare":
        arrays["layer_fusion_weights"] = zeros(2, 3)
    else:
        arrays["fc.weight"] = zeros(8, 24)
    if family == "dspark":
        arrays |= {"markov_head.markov_w1.weight": zeros(VOCAB, RANK)}
        arrays |= {"markov_head.markov_w2.weight": zeros(DRAFT_VOCAB, RANK)}
        arrays |= {
            "confidence_head.proj.weight": zeros(1, HIDDEN + RANK),
            "confidence_head.proj.bias": zeros(1),
        }
    return arrays


def write_draft(
    folder: Path,
    family: str = "dflash",
    change: Callable[[dict[str, Any]], object] | None = None,
    weights: Callable[[Arrays], object] | None = None,
    verifier: str = "../verifier",
) -> Path:
    """A draft folder; `change` edits the config and `weights` the tensors before they are written."""
    folder.mkdir(parents=True, exist_ok=True)
    config, arrays = draft_config(family, verifier), draft_arrays(family)
    if change:
        change(config)
    if weights:
        weights(arrays)
    (folder / "config.json").write_text(json.dumps(config, ensure_ascii=False), encoding="utf-8")
    save_file(arrays, folder / "model.safetensors")
    return folder


def write_pair(folder: Path) -> Path:
    """`folder` with `verifier` and a `dflash` draft that names it as ../verifier."""
    write_verifier(folder / "verifier")
    write_draft(folder / "dflash")
    return folder


def refusal(*args: Any, **kwargs: Any) -> str:
    """The one line with which `resolve` refuses these arguments."""
    with pytest.raises(CheckpointError) as caught:
        resolve(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    return message


def zeros(*shape: int) -> npt.NDArray[np.float32]:
    """A float32 tensor of zeros."""
    return np.zeros(shape, np.float32)
