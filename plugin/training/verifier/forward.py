"""The verifier's forward pass, written without anything that waits for the device.

transformers' own forward waits where it looks for the end-of-image token and for masks that it can leave out. Its
layers are run by `run_layer`, which gives away the branch that drafts read and can be compiled: eagerly, most of a
layer's time goes into norms and gates that one program does in passing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.nn import functional
from transformers import T5Gemma2ForConditionalGeneration

Rope = tuple[torch.Tensor, torch.Tensor]
RunLayer = Callable[
    [Any, torch.Tensor, Rope, torch.Tensor, torch.Tensor | None], tuple[torch.Tensor, torch.Tensor]
]


def run_layer(
    layer: Any, states: torch.Tensor, rope: Rope, mask: torch.Tensor, encoded: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """transformers' encoder layer, or with `encoded` its decoder layer.

    `states` [rows, length, hidden]; `mask` bool [rows, 1, length, keys], whose keys are the layer's own and behind them
    those of `encoded` [rows, prompt length, hidden].

    Returns:
        The new states, and the normed MLP branch that joined them last; both like `states`.
    """
    normed = layer.pre_self_attn_layernorm(states)
    attended = layer.self_attn(normed, rope, mask, *(() if encoded is None else (encoded,)))[0]
    states = states + layer.dropout(layer.post_self_attn_layernorm(attended))
    branch = layer.post_feedforward_layernorm(layer.mlp(layer.pre_feedforward_layernorm(states)))
    return states + layer.dropout(branch), branch


def verifier_states(
    model: T5Gemma2ForConditionalGeneration,
    prompts: torch.Tensor,
    prompt_mask: torch.Tensor,
    tokens: torch.Tensor,
    taps: Collection[int] = (),
    layer: RunLayer = run_layer,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The decoder's final normed states [rows, decoder length, hidden], and the branches of its layers `taps`, each of
    that shape, in the layers' order.

    `prompts` and `prompt_mask` [rows, prompt length] are encoder ids and which of them are real, `tokens` [rows,
    decoder length] right-padded decoder ids. The masks are those that transformers builds for attention by `sdpa`.
    """
    window = model.config.decoder.sliding_window
    reach = model.config.encoder.text_config.sliding_window
    table = model.get_input_embeddings()
    visible = prompt_mask.bool()[:, None, None, :]
    own = _distances(prompts.shape[1], prompts.device)
    near = (own < (reach + 1) // 2) & (own > -(reach // 2 + 1))
    # Contiguous like the other one, so that one program serves both kinds.
    everything = visible.expand(-1, -1, prompts.shape[1], -1).contiguous()
    encoder_masks = {"full_attention": everything, "sliding_attention": visible & near}
    encoder: Any = model.get_encoder().text_model
    encoded, _ = _run(encoder, _embedded(table, prompts), encoder_masks, None, (), layer)
    back = _distances(tokens.shape[1], tokens.device)
    causal = (back >= 0).expand(tokens.shape[0], 1, -1, -1)
    prompt = visible.expand(-1, -1, tokens.shape[1], -1)
    decoder_masks = {
        "full_attention": torch.cat([causal, prompt], dim=-1),
        "sliding_attention": torch.cat([causal & (back < window), prompt], dim=-1),
    }
    return _run(model.get_decoder(), _embedded(table, tokens), decoder_masks, encoded, taps, layer)


def _run(
    stack: Any,
    states: torch.Tensor,
    masks: dict[str, torch.Tensor],
    encoded: torch.Tensor | None,
    taps: Collection[int],
    layer: RunLayer,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A stack's normed states and its tapped branches."""
    positions = torch.arange(states.shape[1], device=states.device)[None]
    ropes = {kind: stack.rotary_emb(states, positions, kind) for kind in set(stack.config.layer_types)}
    states = stack.dropout(states)
    branches = []
    for number, (module, kind) in enumerate(zip(stack.layers, stack.config.layer_types, strict=True)):
        states, branch = layer(module, states, ropes[kind], masks[kind], encoded)
        if number in taps:
            branches.append(branch)
    return stack.dropout(stack.norm(states)), branches


def _embedded(table: Any, ids: torch.Tensor) -> torch.Tensor:
    """What the embedding module computes, with a selection where it has an indexed assignment, which would wait."""
    scaled = functional.embedding(ids, table.weight) * table.embed_scale.to(table.weight.dtype)
    return torch.where(
        (ids == table.eoi_token_index)[..., None], table.eoi_embedding.to(scaled.dtype), scaled
    )


def _distances(length: int, device: torch.device) -> torch.Tensor:
    """[length, length]: query position minus key position."""
    positions = torch.arange(length, device=device)
    return positions[:, None] - positions[None, :]
