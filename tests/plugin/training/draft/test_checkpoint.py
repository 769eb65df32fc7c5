"""The checkpoint folder: tensors and config as the published drafts have them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from plugin.drafts.families import FAMILIES
from plugin.training.draft.checkpoint import DraftError, load_draft, save_draft, write_json
from plugin.training.draft.model import TrainableDraft


def _write(folder: Path, draft: TrainableDraft) -> dict[str, tuple[list[int], str]]:
    save_draft(folder, draft, "../verifier", None)
    with safe_open(folder / "model.safetensors", "pt") as file:
        slices = {name: file.get_slice(name) for name in sorted(file.keys())}
        return {name: (part.get_shape(), part.get_dtype()) for name, part in slices.items()}


def _expected(family: str, layers: int, aux: int) -> dict[str, tuple[list[int], str]]:
    hidden, inner, heads, kv, dim, vocab, small, rank = 32, 48, 4, 2, 8, 64, 40, 8
    shapes: dict[str, list[int]] = {
        "embed_tokens.weight": [vocab, hidden],
        "lm_head.weight": [small, hidden],
        "norm.weight": [hidden],
        "hidden_norm.weight": [hidden],
    }
    for layer in range(layers):
        name = f"layers.{layer}."
        shapes |= {
            f"{name}input_layernorm.weight": [hidden],
            f"{name}post_attention_layernorm.weight": [hidden],
            f"{name}self_attn.q_proj.weight": [heads * dim, hidden],
            f"{name}self_attn.k_proj.weight": [kv * dim, hidden],
            f"{name}self_attn.v_proj.weight": [kv * dim, hidden],
            f"{name}self_attn.o_proj.weight": [hidden, heads * dim],
            f"{name}self_attn.q_norm.weight": [dim],
            f"{name}self_attn.k_norm.weight": [dim],
            f"{name}mlp.gate_proj.weight": [inner, hidden],
            f"{name}mlp.up_proj.weight": [inner, hidden],
            f"{name}mlp.down_proj.weight": [hidden, inner],
        }
        if family == "dflare":
            shapes |= {f"{name}self_attn.{part}_proj_target.weight": [kv * dim, hidden] for part in "kv"}
    if family == "dflare":
        shapes["layer_fusion_weights"] = [layers, aux]
    else:
        shapes["fc.weight"] = [hidden, aux * hidden]
    if family == "dspark":
        shapes |= {
            "markov_head.markov_w1.weight": [vocab, rank],
            "markov_head.markov_w2.weight": [small, rank],
            "confidence_head.proj.weight": [1, hidden + rank],
            "confidence_head.proj.bias": [1],
        }
    return {
        **{name: (shape, "BF16") for name, shape in shapes.items()},
        "t2d": ([vocab], "BOOL"),
        "d2t": ([small], "I64"),
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_are_the_published_ones(
    make_draft: Callable[..., TrainableDraft], tmp_path: Path, family: str
) -> None:
    assert _write(tmp_path / "draft", make_draft(family)) == _expected(family, layers=2, aux=3)


@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        ("gated", {"markov_head.gate_proj.weight": [8, 40], "markov_head.gate_proj.bias": [8]}),
        ("rnn", {"markov_head.joint_proj.weight": [24, 48], "markov_head.joint_proj.bias": [24]}),
    ],
)
def test_other_markov_heads_add_their_tensors(
    make_draft: Callable[..., TrainableDraft], tmp_path: Path, kind: str, extra: dict[str, list[int]]
) -> None:
    found = _write(tmp_path, make_draft("dspark", markov_head_type=kind))
    expected = _expected("dspark", 2, 3) | {name: (shape, "BF16") for name, shape in extra.items()}
    assert found == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_config_json(make_draft: Callable[..., TrainableDraft], tmp_path: Path, family: str) -> None:
    _write(tmp_path, make_draft(family))
    config = json.loads((tmp_path / "config.json").read_text())
    title = {"dflash": "DFlash", "dspark": "DSpark", "dflare": "DFlare"}[family]
    assert config["architectures"] == [f"{title}DraftModel"]
    assert config["auto_map"] == {"": f"config.{title}SpeculatorConfig"}
    assert f"class {title}SpeculatorConfig(PreTrainedConfig)" in (tmp_path / "config.py").read_text()
    assert "model_type" not in config
    assert config["speculators_model_type"] == config["speculators_config"]["algorithm"] == family
    assert config["speculators_config"]["proposal_methods"] == [
        {"accept_tolerance": 0.0, "proposal_type": "greedy", "speculative_tokens": 7, "verifier_accept_k": 1}
    ]
    assert config["speculators_config"]["verifier"] == {
        "architectures": ["T5Gemma2ForConditionalGeneration"],
        "name_or_path": "../verifier",
    }
    assert (config["block_size"], config["draft_vocab_size"], config["mask_token_id"]) == (8, 40, 4)
    assert config["aux_hidden_state_layer_ids"] == [0, 2, 5]
    assert config["dtype"] == "bfloat16" and config["tie_word_embeddings"] is False
    layer = config["transformer_layer_config"]
    assert layer["model_type"] == "llama" and layer["hidden_act"] == "silu"
    assert layer["layer_types"] == ["full_attention"] * 2 and layer["num_hidden_layers"] == 2
    assert layer["rope_parameters"] == {"rope_type": "linear", "factor": 2.0, "rope_theta": 100000.0}
    assert layer["rope_theta"] == 100000.0 and layer["vocab_size"] == 64
    assert layer["verifier_model_type"] == "t5gemma2" and layer["verifier_is_encoder_decoder"] is True
    heads = {"markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov"}
    assert heads & set(config) == (heads if family == "dspark" else set())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_written_draft_can_be_read_back(
    make_draft: Callable[..., TrainableDraft], tmp_path: Path, family: str
) -> None:
    draft = make_draft(family)
    _write(tmp_path, draft)
    again = load_draft(tmp_path)
    expected = draft.config if family == "dspark" else dataclasses.replace(draft.config, markov_rank=256)
    assert again.config == expected
    kept = again.state_dict()
    for name, tensor in draft.state_dict().items():
        stored = tensor.bfloat16().to(tensor.dtype) if tensor.is_floating_point() else tensor
        assert torch.equal(kept[name], stored), name


def test_a_draft_takes_the_verifiers_own_table_on(
    make_draft: Callable[..., TrainableDraft], tmp_path: Path
) -> None:
    """The file has it rounded to bfloat16; with another verifier's it is refused."""
    draft = make_draft("dflash")
    table = draft.embed_tokens.weight
    _write(tmp_path, draft)
    assert not torch.equal(load_draft(tmp_path).embed_tokens.weight, table)
    again = load_draft(tmp_path, table)
    assert torch.equal(again.embed_tokens.weight, table) and torch.equal(
        again.lm_head.weight, draft.lm_head.weight
    )
    for other in (table + 1.0, table[:, :16]):
        with pytest.raises(DraftError, match=r"embed_tokens.weight is not the verifier's"):
            load_draft(tmp_path, other)
    moved = load_draft(tmp_path, table + 1.0, new_verifier=True)
    assert torch.equal(moved.embed_tokens.weight, table + 1.0)
    assert torch.equal(moved.lm_head.weight, draft.lm_head.weight + 1.0)
    with pytest.raises(DraftError, match=r"embed_tokens.weight is not the verifier's"):
        load_draft(tmp_path, table[:, :16], new_verifier=True)


def test_a_broken_folder_is_one_line(make_draft: Callable[..., TrainableDraft], tmp_path: Path) -> None:
    _write(tmp_path, make_draft("dflash"))
    config_file, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    config = json.loads(config_file.read_text())
    config_file.write_text(json.dumps({**config, "draft_vocab_size": 41}))
    with pytest.raises(DraftError, match=r"model.safetensors: t2d: 40 tokens where draft_vocab_size is 41"):
        load_draft(tmp_path)
    del config["block_size"]
    for text, message in (
        ("{", "config.json: Expecting"),
        (json.dumps(config), "config.json: has no 'block_size'"),
    ):
        config_file.write_text(text)
        with pytest.raises(DraftError, match=message):
            load_draft(tmp_path)
    _write(tmp_path, make_draft("dflash"))
    weights.write_bytes(weights.read_bytes()[:-9])
    with pytest.raises(DraftError, match=r"model.safetensors: "):
        load_draft(tmp_path)
    config_file.unlink()
    with pytest.raises(DraftError, match=r"config.json: no such file"):
        load_draft(tmp_path)


def test_no_nan_is_written_as_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "val_metrics.json", {"loss_epoch": float("nan")})


def test_weights_that_are_not_finite_are_never_written(
    make_draft: Callable[..., TrainableDraft], tmp_path: Path
) -> None:
    draft = make_draft("dflash")
    draft.norm.weight.data[3] = float("inf")
    with pytest.raises(ValueError, match=r"tensor norm.weight holds values that are not finite"):
        _write(tmp_path / "draft", draft)
    assert not (tmp_path / "draft").exists()
