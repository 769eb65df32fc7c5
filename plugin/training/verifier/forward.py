"""The verifier's forward pass, written without anything that waits for the device.

transformers' own forward waits where it looks for the end-of-image token and for masks that it can leave out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from transformers import T5Gemma2ForConditionalGeneration


def verifier_states(
    model: T5Gemma2ForConditionalGeneration,
    prompts: torch.Tensor,
    prompt_mask: torch.Tensor,
    tokens: torch.Tensor,
) -> torch.Tensor:
    """The decoder's final normed states [rows, decoder length, hidden].

    `prompts` and `prompt_mask` [rows, prompt length] are encoder ids and which of them are real, `tokens` [rows,
    decoder length] right-padded decoder ids. The masks are those that transformers builds for attention by `sdpa`.
    """
    window = model.config.decoder.sliding_window
    reach = model.config.encoder.text_config.sliding_window
    table = model.get_input_embeddings()
    prompt_mask = prompt_mask.bool()
    visible = prompt_mask[:, None, None, :]
    own = _distances(prompts.shape[1], prompts.device)
    near = (own < (reach + 1) // 2) & (own > -(reach // 2 + 1))
    encoded = model.get_encoder()(
        inputs_embeds=_embedded(table, prompts),
        attention_mask={
            "full_attention": visible.expand(-1, -1, prompts.shape[1], -1),
            "sliding_attention": visible & near,
        },
    ).last_hidden_state
    back = _distances(tokens.shape[1], tokens.device)
    causal = (back >= 0).expand(tokens.shape[0], 1, -1, -1)
    return model.get_decoder()(
        inputs_embeds=_embedded(table, tokens),
        attention_mask={"full_attention": causal, "sliding_attention": causal & (back < window)},
        encoder_hidden_states=encoded,
        encoder_attention_mask={"full_attention": visible.expand(-1, -1, tokens.shape[1], -1)},
        use_cache=False,
    ).last_hidden_state


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
