"""Tiny random drafts of the three families in the published Speculators layout (names, shapes, extra keys).

Norm weights differ strongly from layer to layer, the draft vocabulary is a scattered subset of the verifier's, and
`config.py` raises when it is executed: a loader that takes a short cut gives other draft tokens or fails.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from plugin.drafts.families import Family, MarkovHeadType
from plugin.training.draft.config import DraftConfig
from tests.reference.tiny import MASK

EMBEDDING = "model.encoder.embed_tokens.weight"
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class DraftSpec:
    """What varies between drafts.

    `aux`: zero-based decoder layers whose post-feedforward-norm branch is tapped; `draft_vocab`: rows of the draft's
    own head, or None for a full-vocabulary draft that has no head of its own; `markov`: DSpark's head type.
    """

    family: Family
    layers: int = 2
    aux: tuple[int, ...] = (0, 2, 4)
    draft_vocab: int | None = 320
    markov: MarkovHeadType = "vanilla"
    markov_rank: int = 16
    confidence: bool = True
    sample_from_anchor: bool | None = None
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    seed: int = 11


def verifier_table(verifier: Path) -> torch.Tensor:
    """The raw, unscaled embedding table `[vocab, hidden]` of a verifier checkpoint."""
    with safe_open(verifier / "model.safetensors", framework="pt") as tensors:
        return tensors.get_tensor(EMBEDDING).float()


def draft_config(spec: DraftSpec, verifier: Path, name_or_path: str | None = None) -> dict[str, Any]:
    """config.json of the draft, as training writes it."""
    decoder = SimpleNamespace(**json.loads((verifier / "config.json").read_text())["decoder"])
    config = DraftConfig.for_decoder(
        spec.family,
        decoder,
        draft_vocab_size=spec.draft_vocab or decoder.vocab_size,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        aux_hidden_state_layer_ids=spec.aux,
        mask_token_id=MASK,
        markov_rank=spec.markov_rank,
        markov_head_type=spec.markov,
        enable_confidence_head=spec.confidence,
        confidence_head_with_markov=spec.confidence,
    ).to_json(name_or_path or str(verifier), decoder.final_logit_softcapping, "float32")
    if spec.sample_from_anchor is not None:
        config["sample_from_anchor"] = spec.sample_from_anchor
    return {**config, "transformers_version": "5.0.0"}


def draft_tensors(spec: DraftSpec, table: torch.Tensor, target_ids: Sequence[int] | None = None) -> Tensors:
    """Random tensors of the draft under their published names.

    `table`: the verifier's `[vocab, hidden]`; `target_ids`: which verifier ids the draft's vocabulary holds, in
    ascending order (default: a seeded scattered subset).
    """
    random = torch.Generator().manual_seed(spec.seed)
    vocab, hidden = table.shape
    q_size, kv_size = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim

    def linear(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=random) * columns**-0.5

    def norm(size: int, mean: float = 1.0, std: float = 0.2) -> torch.Tensor:
        return mean + std * torch.randn(size, generator=random)

    tensors: Tensors = {
        "embed_tokens.weight": table.clone(),
        "norm.weight": norm(hidden, 8.0),
        "hidden_norm.weight": norm(hidden),
    }
    rows = vocab
    if spec.draft_vocab is not None:
        rows = spec.draft_vocab
        ids = (
            torch.tensor(target_ids)
            if target_ids is not None
            else torch.randperm(vocab, generator=random)[:rows]
        )
        ids = ids.sort().values
        tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, ids, True)
        tensors["d2t"] = ids - torch.arange(rows)
        tensors["lm_head.weight"] = table[ids].clone()
    if spec.family == "dflare":
        tensors["layer_fusion_weights"] = torch.randn(spec.layers, len(spec.aux), generator=random)
    else:
        tensors["fc.weight"] = linear(hidden, len(spec.aux) * hidden)
    for index in range(spec.layers):
        layer = f"layers.{index}."
        attention = layer + "self_attn."
        tensors[layer + "input_layernorm.weight"] = norm(hidden)
        tensors[layer + "post_attention_layernorm.weight"] = norm(hidden)
        tensors[attention + "q_proj.weight"] = linear(q_size, hidden)
        tensors[attention + "k_proj.weight"] = linear(kv_size, hidden)
        tensors[attention + "v_proj.weight"] = linear(kv_size, hidden)
        tensors[attention + "o_proj.weight"] = linear(hidden, q_size)
        tensors[attention + "q_norm.weight"] = norm(spec.head_dim, 3.0, 1.0)
        tensors[attention + "k_norm.weight"] = norm(spec.head_dim, 2.0, 1.0)
        if spec.family == "dflare":
            tensors[attention + "k_proj_target.weight"] = linear(kv_size, hidden)
            tensors[attention + "v_proj_target.weight"] = linear(kv_size, hidden)
        tensors[layer + "mlp.gate_proj.weight"] = linear(2 * hidden, hidden)
        tensors[layer + "mlp.up_proj.weight"] = linear(2 * hidden, hidden)
        tensors[layer + "mlp.down_proj.weight"] = linear(hidden, 2 * hidden)
    if spec.family == "dspark":
        rank = spec.markov_rank
        tensors["markov_head.markov_w1.weight"] = torch.randn(vocab, rank, generator=random)
        tensors["markov_head.markov_w2.weight"] = linear(rows, rank) * 3.0
        if spec.markov == "gated":
            tensors["markov_head.gate_proj.weight"] = linear(rank, hidden + rank)
            tensors["markov_head.gate_proj.bias"] = norm(rank, 0.0)
        if spec.markov == "rnn":
            tensors["markov_head.joint_proj.weight"] = linear(3 * rank, hidden + 2 * rank)
            tensors["markov_head.joint_proj.bias"] = norm(3 * rank, 0.0)
        if spec.confidence:
            tensors["confidence_head.proj.weight"] = linear(1, hidden + rank)
            tensors["confidence_head.proj.bias"] = norm(1, 0.0)
    return tensors


def write_folder(folder: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    """Write config.json, config.py and model.safetensors; return `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    (folder / "config.py").write_text('raise RuntimeError("a draft\'s config.py must not be executed")\n')
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def write_draft(folder: Path, spec: DraftSpec, verifier: Path) -> Path:
    """Write a random draft for `verifier` into `folder`."""
    return write_folder(folder, draft_config(spec, verifier), draft_tensors(spec, verifier_table(verifier)))


SPECS = {
    "dflash": DraftSpec("dflash"),
    "dspark": DraftSpec("dspark"),
    "dflare": DraftSpec("dflare", aux=(0, 2, 3, 5)),
    "dflash-3": DraftSpec("dflash", layers=3, aux=(1, 3)),
    "dflare-3": DraftSpec("dflare", layers=3, aux=(1, 3, 4)),
    "dflash-full": DraftSpec("dflash", draft_vocab=None),
    "dspark-gated": DraftSpec("dspark", markov="gated"),
    "dspark-rnn": DraftSpec("dspark", markov="rnn", layers=3),
    "dspark-anchor": DraftSpec("dspark", sample_from_anchor=True, confidence=False),
}


def write_drafts(out: Path, verifier: Path) -> None:
    """Write every draft of `SPECS` to `out/<name>`."""
    for name, spec in SPECS.items():
        write_draft(out / name, spec, verifier)
