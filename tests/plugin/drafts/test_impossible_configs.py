"""Configs that vLLM would serve with a dead draft, or refuse late and without a name: refused before loading, by file,
key and value (N06, N07).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plugin.drafts.checkpoint import resolve
from tests.plugin.drafts.folders import refusal, write_draft, write_pair, write_verifier

LAYERS = "transformer_layer_config"
ABSENT = object()


def put(config: dict[str, Any], dotted: str, value: object) -> None:
    """Sets, or with `ABSENT` drops, a nested key."""
    *path, key = dotted.split(".")
    for part in path:
        config = config[part]
    if value is ABSENT:
        del config[key]
    else:
        config[key] = value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention_bias", True),
        ("attention_bias", 0),
        ("rope_parameters", ABSENT),
        ("rope_parameters", None),
        ("rope_parameters", "linear"),
        ("rope_parameters.rope_type", "yarnish"),
        ("rope_parameters.rope_type", ABSENT),
        ("rope_parameters.factor", 0),
        ("rope_parameters.factor", ABSENT),
        ("rope_parameters.factor", -8),
        ("rope_parameters.factor", 1e30),
        ("rope_parameters.factor", True),
        ("rope_parameters.rope_theta", 0),
        ("rope_parameters.rope_theta", ABSENT),
        ("rope_parameters.rope_theta", float("nan")),
        ("rope_parameters.partial_rotary_factor", 0.5),
        ("rms_norm_eps", ABSENT),
        ("rms_norm_eps", -1),
        ("rms_norm_eps", "x"),
        ("rms_norm_eps", float("inf")),
        ("rms_norm_eps", 1e6),
        ("max_position_embeddings", "x"),
        ("max_position_embeddings", ABSENT),
        ("max_position_embeddings", 2**40),
        ("max_position_embeddings", True),
        ("hidden_act", "gelu"),
        ("hidden_act", ABSENT),
        ("layer_types", ["full_attention", "nonsense"]),
        ("layer_types", ["full_attention"]),
        ("layer_types", "full_attention"),
        ("num_hidden_layers", 10**12),
        ("num_hidden_layers", True),
        ("is_neox_style", False),
        ("is_causal", True),
        ("logit_scale", 2.0),
        ("quantization_config", {"quant_method": "fp8"}),
    ],
)
def test_n06_draft_layers(tmp_path: Path, key: str, value: object) -> None:
    """The line names the draft's config.json, the key and the value."""
    write_verifier(tmp_path / "verifier")
    draft = write_draft(tmp_path / "d", change=lambda config: put(config, f"{LAYERS}.{key}", value))
    message = refusal(str(draft), None, None, None)
    assert f"{draft}/config.json: {LAYERS}." in message and key.split(".")[-1] in message


def test_n06_sliding_layers_need_a_window(tmp_path: Path) -> None:
    write_verifier(tmp_path / "verifier")

    def change(config: dict[str, Any]) -> None:
        config[LAYERS]["layer_types"] = ["sliding_attention"] * 2

    draft = write_draft(tmp_path / "d", change=change)
    assert f"{LAYERS}.sliding_window is missing" in refusal(str(draft), None, None, None)


def test_n06_a_block_above_the_verifiers_positions(tmp_path: Path) -> None:
    write_verifier(tmp_path / "verifier")
    draft = write_draft(tmp_path / "d", change=lambda config: config.update(block_size=600))
    message = refusal(str(draft), None, None, None)
    assert "block_size is 600" in message and "decoder.max_position_embeddings is 512" in message


@pytest.mark.parametrize("stack", ["decoder", "encoder.text_config"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vocab_size", 48),
        ("hidden_size", 16),
        ("num_hidden_layers", "6"),
        ("num_hidden_layers", 10**9),
        ("max_position_embeddings", "x"),
        ("max_position_embeddings", ABSENT),
        ("sliding_window", 0),
        ("sliding_window", ABSENT),
        ("layer_types", ["full_attention"] * 5),
        ("layer_types", ["nonsense"] * 6),
        ("rms_norm_eps", None),
        ("rms_norm_eps", -1e-6),
        ("hidden_activation", "relu"),
        ("num_attention_heads", 0),
        ("query_pre_attn_scalar", 0),
        ("query_pre_attn_scalar", "x"),
        ("final_logit_softcapping", -30.0),
        ("attention_bias", "no"),
        ("rope_parameters", {"full_attention": {"rope_type": "linear", "factor": 0}}),
        ("rope_parameters", {"full_attention": {"rope_type": "bogus"}}),
        ("rope_parameters", {"sliding_attention": 5}),
        ("rope_parameters", []),
    ],
)
def test_n07_verifier_stacks(tmp_path: Path, stack: str, key: str, value: object) -> None:
    """In both stacks; the encoder's vocabulary and width are the decoder's."""
    verifier = write_verifier(tmp_path / "v", lambda config: put(config, f"{stack}.{key}", value))
    message = refusal(str(verifier), None, None, None)
    assert message.startswith(f"{verifier}/config.json: ") and key in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("eoi_token_index", "x"),
        ("eoi_token_index", 40),
        ("bos_token_id", -1),
        ("decoder.bos_token_id", None),
        ("eos_token_id", [1, 400]),
        ("eos_token_id", True),
        ("decoder_start_token_id", 2.0),
    ],
)
def test_n07_token_ids(tmp_path: Path, key: str, value: object) -> None:
    """Ids outside of the vocabulary, and a decoder that could not start."""
    verifier = write_verifier(tmp_path / "v", lambda config: put(config, key, value))
    assert f"{verifier}/config.json: {key} is " in refusal(str(verifier), None, None, None)


def test_the_published_values_are_served(tmp_path: Path) -> None:
    """Keys of vLLM's layers that say what holds anyway, and integers where floats stand."""
    write_pair(tmp_path)

    def change(config: dict[str, Any]) -> None:
        config[LAYERS] |= {
            "attention_bias": False,
            "mlp_bias": False,
            "sliding_window": 2048,
            "logit_scale": 1.0,
        }
        config[LAYERS]["rope_parameters"] |= {"factor": 8, "rope_theta": 1000000, "partial_rotary_factor": 1}

    assert resolve(str(write_draft(tmp_path / "d", change=change)), None, None, None).draft is not None
