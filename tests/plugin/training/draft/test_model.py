"""The drafts' forward pass: what a block may depend on, and the three families against plain loops."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch

from plugin.drafts.families import FAMILIES
from plugin.training.draft.anchors import Blocks, make_blocks
from plugin.training.draft.model import DraftModel, rope_tables, rotate

LENGTH, BLOCK = 24, 8


def _rows() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, documents and positions of a row of 20 tokens and one of two samples packed together."""
    torch.manual_seed(2)
    tokens = torch.randint(5, 60, (2, LENGTH))
    documents = torch.tensor([[0] * 20 + [-1] * 4, [1] * 11 + [2] * 13])
    positions = torch.tensor([list(range(LENGTH)), [*range(11), *range(13)]])
    return tokens, documents, positions


def _blocks(tokens: torch.Tensor, documents: torch.Tensor, positions: torch.Tensor) -> Blocks:
    columns = torch.tensor([[10, 13, 16], [3, 5, 14]])
    return make_blocks(tokens, documents, positions, columns, torch.ones(2, 3, dtype=torch.bool), BLOCK, 4)


def _states(draft: DraftModel, aux: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    _, documents, positions = _rows()
    return draft(aux, documents, positions, _blocks(tokens, documents, positions))


def _aux(draft: DraftModel) -> torch.Tensor:
    torch.manual_seed(3)
    return torch.randn(2, LENGTH, draft.config.num_aux_layers, draft.config.hidden_size)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_block_sees_only_what_stands_before_its_anchor_f11(
    make_draft: Callable[..., DraftModel], family: str
) -> None:
    """F11: anchors closer than the block, and two samples packed together."""
    draft = make_draft(family)
    tokens, _, _ = _rows()
    aux = _aux(draft)
    before = _states(draft, aux, tokens)

    changed_aux, changed_tokens = aux.clone(), tokens.clone()
    changed_aux[0, 13:] += 5.0
    changed_tokens[0, 14:] = 7
    after = _states(draft, changed_aux, changed_tokens)
    assert (after[0, 1] - before[0, 1]).abs().max() < 1e-5, (
        "the block anchored at 13 saw what follows its anchor"
    )
    assert (after[0, 2] - before[0, 2]).abs().max() > 1e-3, (
        "the block anchored at 16 must see columns 13 to 15"
    )

    changed_aux = aux.clone()
    changed_aux[0, 12] += 5.0
    assert (_states(draft, changed_aux, tokens)[0, 1] - before[0, 1]).abs().max() > 1e-3

    leaked = aux.clone()
    leaked[1, :11] += 5.0  # the first of two packed samples
    assert (_states(draft, leaked, tokens)[1, 2] - before[1, 2]).abs().max() < 1e-5, (
        "one sample saw another's states"
    )
    leaked = aux.clone()
    leaked[1, 11:] += 5.0
    assert (_states(draft, leaked, tokens)[1, :2] - before[1, :2]).abs().max() < 1e-5


def _norm(vector: list[float], weight: torch.Tensor, eps: float) -> list[float]:
    scale = 1 / math.sqrt(sum(v * v for v in vector) / len(vector) + eps)
    return [v * scale * float(w) for v, w in zip(vector, weight, strict=True)]


def _plain_block(draft: DraftModel, aux: torch.Tensor, ids: list[int], anchor: int) -> torch.Tensor:
    """One block from the formulas, one vector at a time; `aux` [anchor or more, T, hidden], float64."""
    config, weights = (
        draft.config,
        {name: t.double() for name, t in draft.state_dict().items() if t.is_floating_point()},
    )
    dim, groups = config.head_dim, config.num_attention_heads // config.num_key_value_heads

    def normed(vector: torch.Tensor, weight: str) -> torch.Tensor:
        return torch.tensor(_norm(vector.tolist(), weights[weight], config.rms_norm_eps), dtype=torch.float64)

    def turned(vector: torch.Tensor, position: int) -> torch.Tensor:
        out = vector.clone()
        for i in range(dim // 2):
            angle = position / config.rope_parameters["factor"]
            angle /= config.rope_parameters["rope_theta"] ** (2 * i / dim)
            low, high = float(vector[i]), float(vector[i + dim // 2])
            out[i] = low * math.cos(angle) - high * math.sin(angle)
            out[i + dim // 2] = high * math.cos(angle) + low * math.sin(angle)
        return out

    states = [weights["embed_tokens.weight"][token] for token in ids]
    for layer in range(config.num_hidden_layers):
        name = f"layers.{layer}."
        own = "_target" if config.family == "dflare" else ""
        entries = []
        for j in range(anchor):
            if config.family == "dflare":
                shares = weights["layer_fusion_weights"][layer].softmax(-1)
                context = sum(share * aux[j, t] for t, share in enumerate(shares))
            else:
                context = weights["fc.weight"] @ aux[j].flatten()
            context = normed(context, "hidden_norm.weight")
            k = weights[f"{name}self_attn.k_proj{own}.weight"] @ context
            entries.append((j, k, weights[f"{name}self_attn.v_proj{own}.weight"] @ context))
        inputs = [normed(state, f"{name}input_layernorm.weight") for state in states]
        for slot, vector in enumerate(inputs):
            k = weights[f"{name}self_attn.k_proj.weight"] @ vector
            entries.append((anchor + slot, k, weights[f"{name}self_attn.v_proj.weight"] @ vector))
        following = []
        for slot, vector in enumerate(inputs):
            heads = []
            for head in range(config.num_attention_heads):
                part, shared = slice(head * dim, (head + 1) * dim), head // groups
                kv = slice(shared * dim, (shared + 1) * dim)
                query = (weights[f"{name}self_attn.q_proj.weight"] @ vector)[part]
                query = turned(normed(query, f"{name}self_attn.q_norm.weight"), anchor + slot)
                keys = [
                    turned(normed(k[kv], f"{name}self_attn.k_norm.weight"), place) for place, k, _ in entries
                ]
                scores = torch.stack([query @ key for key in keys]) / math.sqrt(dim)
                shares = scores.softmax(0)
                heads.append(sum(share * v[kv] for share, (_, _, v) in zip(shares, entries, strict=True)))
            state = states[slot] + weights[f"{name}self_attn.o_proj.weight"] @ torch.cat(heads)
            inner = normed(state, f"{name}post_attention_layernorm.weight")
            gate = weights[f"{name}mlp.gate_proj.weight"] @ inner
            up = weights[f"{name}mlp.up_proj.weight"] @ inner
            following.append(
                state + weights[f"{name}mlp.down_proj.weight"] @ (gate / (1 + (-gate).exp()) * up)
            )
        states = following
    return torch.stack([normed(state, "norm.weight") for state in states])


@pytest.mark.parametrize("family", FAMILIES)
def test_backbone_against_plain_loops(make_draft: Callable[..., DraftModel], family: str) -> None:
    draft = make_draft(family).requires_grad_(False)
    for name, parameter in draft.named_parameters():
        if "norm" in name or name == "layer_fusion_weights":
            parameter.add_(torch.randn_like(parameter) * 0.3)
    tokens, _, _ = _rows()
    aux = _aux(draft)
    found = _states(draft, aux, tokens)
    for number, anchor in ((0, 10), (1, 13)):
        plain = _plain_block(draft, aux[0].double(), [int(tokens[0, anchor]), *[4] * 7], anchor)
        assert (found[0, number].double() - plain).abs().max() < 1e-4


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
def test_markov_heads_against_plain_loops(make_draft: Callable[..., DraftModel], kind: str) -> None:
    draft = make_draft("dspark", markov_head_type=kind).requires_grad_(False)
    tokens, documents, positions = _rows()
    blocks = _blocks(tokens, documents, positions)
    states = torch.randn(*blocks.inputs.shape, draft.config.hidden_size)
    logits, confidence = draft.draft_logits(states, blocks)
    assert confidence is not None and draft.confidence_head is not None
    weights = dict(draft.state_dict())
    rank = draft.config.markov_rank
    memory = torch.zeros(rank)
    for slot in range(BLOCK):
        previous = int(blocks.targets[0, 1, max(slot - 1, 0)])
        embedded, state = weights["markov_head.markov_w1.weight"][previous], states[0, 1, slot]
        biased = embedded
        if kind == "gated":
            joint = torch.cat([state, embedded])
            gate = weights["markov_head.gate_proj.weight"] @ joint + weights["markov_head.gate_proj.bias"]
            biased = torch.sigmoid(gate) * embedded
        elif kind == "rnn":
            joint = torch.cat([memory, embedded, state])
            joint = weights["markov_head.joint_proj.weight"] @ joint + weights["markov_head.joint_proj.bias"]
            gate = torch.sigmoid(joint[:rank])
            memory = gate * memory + (1 - gate) * torch.tanh(joint[rank : 2 * rank])
            biased = torch.tanh(joint[2 * rank :])
        wanted = weights["lm_head.weight"] @ state + weights["markov_head.markov_w2.weight"] @ biased
        assert (logits[0, 1, slot] - wanted).abs().max() < 1e-5
        chance = weights["confidence_head.proj.weight"][0] @ torch.cat([state, embedded])
        chance += weights["confidence_head.proj.bias"][0]
        assert float(confidence[0, 1, slot]) == pytest.approx(float(chance), abs=1e-5)


def test_fusion_starts_at_each_layers_relative_depth(make_draft: Callable[..., DraftModel]) -> None:
    draft = make_draft("dflare", num_hidden_layers=2, aux_hidden_state_layer_ids=(0, 1, 3, 5))
    assert draft.layer_fusion_weights.tolist() == [[2.0, 0.0, 0.0, 0.0], [0.0, 0.0, 2.0, 0.0]]


def test_the_embedding_and_the_head_are_the_verifiers_and_frozen(
    make_draft: Callable[..., DraftModel], verifier: torch.nn.Module
) -> None:
    draft = make_draft("dflash")
    table = verifier.get_input_embeddings().weight  # type: ignore[operator]
    assert torch.equal(draft.embed_tokens.weight, table)
    target = draft.to_target(torch.arange(draft.config.draft_vocab_size))
    assert torch.equal(draft.lm_head.weight, table[target])
    assert {n for n, p in draft.named_parameters() if not p.requires_grad} == {
        "embed_tokens.weight",
        "lm_head.weight",
    }


def test_linear_rope_divides_the_position(make_draft: Callable[..., DraftModel]) -> None:
    config = make_draft("dflash").config
    plain = dataclasses.replace(config, rope_parameters={"rope_type": "default", "rope_theta": 1e5})
    scaled = dataclasses.replace(
        config, rope_parameters={"rope_type": "linear", "rope_theta": 1e5, "factor": 8.0}
    )
    for one, other in zip(
        rope_tables(torch.tensor([3.0]), plain), rope_tables(torch.tensor([24.0]), scaled), strict=True
    ):
        assert torch.allclose(one, other)
    states = torch.randn(1, 1, 2, config.head_dim)
    assert torch.allclose(rotate(states, rope_tables(torch.zeros(1, 1), plain)), states)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"block_size": 1}, "block_size: 1"),
        ({"num_key_value_heads": 3}, "num_attention_heads: 4 is no multiple of num_key_value_heads 3"),
        ({"mask_token_id": 64}, "mask_token_id: 64 is outside the vocabulary of 64"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "rope_type: 'yarn'"),
        ({"family": "eagle"}, "family: 'eagle' is not one of dflash, dspark, dflare"),
    ],
)
def test_impossible_shapes_are_refused(
    make_draft: Callable[..., DraftModel], fields: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(make_draft("dflash").config, **fields)  # type: ignore[arg-type]
