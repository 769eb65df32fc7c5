"""What a draft must propose: one block at a time, straight from the formulas, in plain PyTorch and float32.

Written for reading, not for speed, and without vLLM or `plugin`: a draft that is served differently from how it was
trained still gives the right text, only slowly, so nothing but this comparison can show it.

`aux` below is `[positions, taps, hidden]`: for every decoder position before the anchor, the verifier's
post-feedforward-norm branch of each tapped layer, ascending.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import T5Gemma2ForConditionalGeneration


@torch.inference_mode()
def aux_states(
    model: T5Gemma2ForConditionalGeneration,
    encoder_ids: Sequence[int],
    decoder_ids: Sequence[int],
    layers: Sequence[int],
) -> Tensor:
    """`aux` of every position of `decoder_ids` (start token included), teacher-forced in one pass."""
    taps: dict[int, Tensor] = {}
    hooks = [
        model.model.decoder.layers[i].post_feedforward_layernorm.register_forward_hook(
            lambda _module, _inputs, output, i=i: taps.__setitem__(i, output[0])
        )
        for i in layers
    ]
    try:
        model.model(
            input_ids=torch.tensor([list(encoder_ids)]),
            attention_mask=torch.ones(1, len(encoder_ids), dtype=torch.long),
            decoder_input_ids=torch.tensor([list(decoder_ids)]),
        )
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack([taps[i] for i in sorted(layers)], dim=1)


@dataclass(frozen=True)
class Proposal:
    """`tokens`: K verifier ids; `logits`: `[K, draft vocabulary]` the tokens were taken from; `gaps`: top-1 minus
    top-2 of each; `confidence`: DSpark's `[K]` in 0..1, else None."""

    tokens: list[int]
    logits: Tensor
    gaps: list[float]
    confidence: list[float] | None


class DraftReference:
    """The forward of one draft checkpoint of any family."""

    def __init__(self, config: dict[str, Any], tensors: dict[str, Tensor], verifier_table: Tensor) -> None:
        """`verifier_table`: `[vocab, hidden]`, the head of a full-vocabulary draft that has none of its own."""
        layer = config["transformer_layer_config"]
        if set(layer["layer_types"]) != {"full_attention"}:
            raise ValueError(f"layer_types: expected only full_attention, got {layer['layer_types']}")
        self.family: str = config["speculators_model_type"]
        self.aux_layers: list[int] = sorted(config["aux_hidden_state_layer_ids"])
        self.mask_token: int = config["mask_token_id"]
        self.from_anchor: bool = config.get("sample_from_anchor", False)
        self.markov_type: str | None = config.get("markov_head_type")
        self.layers: int = layer["num_hidden_layers"]
        self.heads: int = layer["num_attention_heads"]
        self.kv_heads: int = layer["num_key_value_heads"]
        self.head_dim: int = layer["head_dim"]
        self.eps: float = layer["rms_norm_eps"]
        self.rope: dict[str, Any] = layer["rope_parameters"]
        self.w = {name: t.float() if t.is_floating_point() else t for name, t in tensors.items()}
        self.head = self.w.get("lm_head.weight", verifier_table)

    @classmethod
    def load(cls, folder: Path, verifier_table: Tensor) -> DraftReference:
        """Read config.json and model.safetensors of `folder`."""
        config = json.loads((folder / "config.json").read_text())
        return cls(config, load_file(folder / "model.safetensors"), verifier_table)

    # -- the block ---------------------------------------------------------------------------------------------

    def propose(self, aux: Tensor, anchor: int, count: int) -> Proposal:
        """`count` greedy draft tokens after the token `anchor`, which stands at position `len(aux)`."""
        slots = self.block_hidden(aux, anchor, count)
        hidden = slots if self.from_anchor else slots[1:]
        base = hidden @ self.head.T
        tokens: list[int] = []
        rows: list[Tensor] = []
        confidence: list[float] = []
        previous, state = anchor, self.first_state(anchor, slots[0])
        for k in range(count):
            row = base[k]
            if self.family == "dspark":
                bias, state = self.markov_bias(previous, hidden[k], state)
                row = row + bias
                if "confidence_head.proj.weight" in self.w:
                    confidence.append(self.confidence(previous, hidden[k]))
            previous = self.target_id(int(row.argmax()))
            tokens.append(previous)
            rows.append(row)
        logits = torch.stack(rows)
        top = logits.topk(2, dim=-1).values
        return Proposal(tokens, logits, (top[:, 0] - top[:, 1]).tolist(), confidence or None)

    def block_hidden(self, aux: Tensor, anchor: int, count: int, visible: Tensor | None = None) -> Tensor:
        """Final-norm states of all slots, `[count + 1, hidden]`, or `[count, hidden]` with `sample_from_anchor`.

        The block is [anchor, MASK x count] at positions p .. p + count and slot k predicts its own position; with
        `sample_from_anchor` it is one shorter and slot k predicts the next position. `visible` `[positions]` hides
        padded context positions; then p is the number of visible ones.
        """
        position = torch.tensor(len(aux)) if visible is None else visible.sum()
        seen = torch.ones(len(aux), dtype=torch.bool) if visible is None else visible
        size = count if self.from_anchor else count + 1
        table = self.w["embed_tokens.weight"]
        x = torch.cat([table[anchor].reshape(1, -1), table[self.mask_token].expand(size - 1, -1)])
        for i in range(self.layers):
            x = x + self._attention(i, x, self._context(i, aux), position, seen)
            x = x + self._mlp(i, self._norm(x, f"layers.{i}.post_attention_layernorm"))
        return self._norm(x, "norm")

    def _context(self, layer: int, aux: Tensor) -> Tensor:
        """What the context keys and values of `layer` are projected from, `[positions, hidden]`."""
        if self.family == "dflare":
            share = torch.softmax(self.w["layer_fusion_weights"][layer], dim=0)
            fused = torch.zeros_like(aux[:, 0])
            for t in range(aux.shape[1]):
                fused = fused + share[t] * aux[:, t]
        else:
            fused = aux.reshape(aux.shape[0], -1) @ self.w["fc.weight"].T
        return self._norm(fused, "hidden_norm")

    def _attention(self, layer: int, x: Tensor, context: Tensor, position: Tensor, seen: Tensor) -> Tensor:
        """Every slot looks at all context before the anchor and at the whole block, in both directions."""
        name = f"layers.{layer}.self_attn."
        suffix = "_target" if self.family == "dflare" else ""
        y = self._norm(x, f"layers.{layer}.input_layernorm")
        context_positions = torch.arange(context.shape[0])
        block_positions = position + torch.arange(x.shape[0])
        q = self._rotate(
            self._norm(self._split(y @ self.w[name + "q_proj.weight"].T), name + "q_norm"), block_positions
        )
        block_k = self._norm(self._split(y @ self.w[name + "k_proj.weight"].T), name + "k_norm")
        context_k = self._norm(
            self._split(context @ self.w[f"{name}k_proj{suffix}.weight"].T), name + "k_norm"
        )
        keys = torch.cat([self._rotate(context_k, context_positions), self._rotate(block_k, block_positions)])
        values = torch.cat(
            [
                self._split(context @ self.w[f"{name}v_proj{suffix}.weight"].T),
                self._split(y @ self.w[name + "v_proj.weight"].T),
            ]
        )
        allowed = torch.cat([seen, torch.ones(x.shape[0], dtype=torch.bool)])
        heads = []
        for h in range(self.heads):
            g = h // (self.heads // self.kv_heads)
            scores = q[:, h] @ keys[:, g].T / math.sqrt(self.head_dim)
            heads.append(scores.masked_fill(~allowed, float("-inf")).softmax(-1) @ values[:, g])
        return torch.cat(heads, dim=-1) @ self.w[name + "o_proj.weight"].T

    def _mlp(self, layer: int, y: Tensor) -> Tensor:
        name = f"layers.{layer}.mlp."
        gate = torch.nn.functional.silu(y @ self.w[name + "gate_proj.weight"].T)
        return (gate * (y @ self.w[name + "up_proj.weight"].T)) @ self.w[name + "down_proj.weight"].T

    def _norm(self, x: Tensor, name: str) -> Tensor:
        """Plain RMSNorm: weight times the normalised value, not (1 + weight)."""
        return self.w[name + ".weight"] * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def _split(self, x: Tensor) -> Tensor:
        """`[n, heads * head_dim]` to `[n, heads, head_dim]`."""
        return x.reshape(x.shape[0], -1, self.head_dim)

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotary embedding over halves of the head, positions divided by the linear factor."""
        half = self.head_dim // 2
        frequency = self.rope["rope_theta"] ** (-torch.arange(half, dtype=torch.float32) / half)
        factor = self.rope["factor"] if self.rope["rope_type"] == "linear" else 1.0
        angle = positions[:, None, None] / factor * frequency
        first, second = x[..., :half], x[..., half:]
        return torch.cat(
            [first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()], dim=-1
        )

    # -- DSpark's heads ----------------------------------------------------------------------------------------

    def first_state(self, anchor: int | Tensor, hidden: Tensor) -> Tensor:
        """The rnn head's state before the first slot that predicts.

        Training runs the head over the whole block from a state of zeros, and the anchor's own slot (`hidden`) comes
        first unless it predicts itself; the token before that slot is taken to be the anchor.
        """
        if self.markov_type != "rnn" or self.from_anchor:
            return torch.zeros(0)
        return self.markov_bias(anchor, hidden, torch.zeros(0))[1]

    def markov_bias(self, previous: int | Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Bias `[draft vocabulary]` from the token before this slot, and the rnn head's next state."""
        e = self.w["markov_head.markov_w1.weight"][previous]
        w2 = self.w["markov_head.markov_w2.weight"]
        if self.markov_type == "gated":
            weight, bias = self.w["markov_head.gate_proj.weight"], self.w["markov_head.gate_proj.bias"]
            return w2 @ (torch.sigmoid(weight @ torch.cat([hidden, e]) + bias) * e), state
        if self.markov_type == "rnn":
            state = torch.zeros_like(e) if state.numel() == 0 else state
            weight, bias = self.w["markov_head.joint_proj.weight"], self.w["markov_head.joint_proj.bias"]
            gate, candidate, output = (weight @ torch.cat([state, e, hidden]) + bias).chunk(3)
            state = torch.sigmoid(gate) * state + (1 - torch.sigmoid(gate)) * torch.tanh(candidate)
            return w2 @ torch.tanh(output), state
        return w2 @ e, state

    def confidence(self, previous: int, hidden: Tensor) -> float:
        """Probability that the slot's proposal is accepted, as the confidence head sees it."""
        weight = self.w["confidence_head.proj.weight"][0]
        features = torch.cat([hidden, self.w["markov_head.markov_w1.weight"][previous]])[: len(weight)]
        return float(torch.sigmoid(weight @ features + self.w["confidence_head.proj.bias"][0]))

    def target_id(self, draft_id: int) -> int:
        """The verifier's id of a draft id."""
        return draft_id + int(self.w["d2t"][draft_id]) if "d2t" in self.w else draft_id
