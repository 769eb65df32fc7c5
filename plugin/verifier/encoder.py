"""The text encoder: runs once a request, over all prompts that a step admits, and leaves one state a prompt token."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.layernorm import GemmaRMSNorm

from plugin.attention.bidirectional import bidirectional_attention
from plugin.verifier.layers import AttentionProjections, GatedMLP, ScaledEmbedding


class EncoderLayer(nn.Module):
    """Sandwich-normed layer: `x + post_norm(attn(pre_norm x))`, then the same around the MLP."""

    def __init__(self, config: Any, layer_idx: int, prefix: str) -> None:
        super().__init__()
        self.self_attn = AttentionProjections(config, layer_idx, prefix=f"{prefix}.self_attn")
        self.mlp = GatedMLP(config, prefix=f"{prefix}.mlp")
        for name in ("pre_self_attn", "post_self_attn", "pre_feedforward", "post_feedforward"):
            self.add_module(f"{name}_layernorm", GemmaRMSNorm(config.hidden_size, eps=config.rms_norm_eps))

    def forward(
        self, hidden_states: torch.Tensor, positions: torch.Tensor, lengths: Sequence[int]
    ) -> torch.Tensor:
        attn = self.self_attn
        q, k, v = attn.qkv(self.pre_self_attn_layernorm(hidden_states), positions)
        out = bidirectional_attention(q, k, v, lengths, attn.window, attn.scaling)
        out, _ = attn.o_proj(out.flatten(1))
        hidden_states = hidden_states + self.post_self_attn_layernorm(out)
        out = self.mlp(self.pre_feedforward_layernorm(hidden_states))
        return hidden_states + self.post_feedforward_layernorm(out)


class TextEncoder(nn.Module):
    """T5Gemma2TextEncoder. The vision tower of the published checkpoints is not built: prompts are text."""

    def __init__(self, config: Any, embed_tokens: ScaledEmbedding, prefix: str) -> None:
        super().__init__()
        # Shared with the decoder; kept out of this module's parameters so that the weights load once.
        self._embed_tokens = [embed_tokens]
        self.layers = nn.ModuleList(
            EncoderLayer(config, i, prefix=f"{prefix}.layers.{i}") for i in range(config.num_hidden_layers)
        )
        self.norm = GemmaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, prompts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Encode prompts of any lengths together.

        Args:
            prompts: token ids, each `[length]`.

        Returns:
            Normed encoder states, each `[length, hidden_size]`, in the order of `prompts`.
        """
        lengths = [prompt.shape[0] for prompt in prompts]
        ids = torch.cat(list(prompts))
        positions = torch.cat([torch.arange(length, device=ids.device) for length in lengths])
        hidden_states = self._embed_tokens[0].scaled(ids)
        for layer in self.layers:
            hidden_states = layer(hidden_states, positions, lengths)
        return list(self.norm(hidden_states).split(lengths))
