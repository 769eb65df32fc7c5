"""The decoder: merged attention over its own tokens and the encoder's states, and the taps that drafts read."""

from typing import Any

import torch
from torch import nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import CacheConfig, VllmConfig
from vllm.model_executor.layers.layernorm import GemmaRMSNorm
from vllm.model_executor.models.interfaces import EagleModelMixin
from vllm.platforms import current_platform

from plugin.attention.merged import MergedAttention
from plugin.projection import few_tokens
from plugin.projection.residual_norm import norm_add_norm
from plugin.verifier.layers import AttentionProjections, GatedMLP, ScaledEmbedding


class DecoderAttention(AttentionProjections):
    """Projections shared by self and cross keys; encoder keys are normed but not rotated."""

    def __init__(self, config: Any, layer_idx: int, cache_config: CacheConfig, prefix: str) -> None:
        super().__init__(config, layer_idx, prefix)
        self.attn = MergedAttention(
            self.num_heads,
            self.num_kv_heads,
            self.head_dim,
            self.scaling,
            self.window,
            cache_config,
            f"{prefix}.attn",
        )

    def cross_kv(self, encoder_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`[num_encoder_tokens, hidden_size]` -> keys and values, each `[num_encoder_tokens, num_kv_heads,
        head_dim]`."""
        weight = self.qkv_proj.weight
        if weight.dim() == 2 and weight.shape[0] == self.q_size + 2 * self.kv_size:
            bias = None if self.qkv_proj.bias is None else self.qkv_proj.bias[self.q_size :]
            kv = torch.nn.functional.linear(encoder_states, weight[self.q_size :], bias)
        else:
            # vLLM's CPU build packs linear weights away after loading: project q too and drop it.
            kv = self.qkv_proj(encoder_states)[0][:, self.q_size :]
        k, v = kv.split([self.kv_size, self.kv_size], dim=-1)
        k = self.k_norm(k.unflatten(-1, (self.num_kv_heads, self.head_dim)))
        return k, v.unflatten(-1, (self.num_kv_heads, self.head_dim))

    def forward(
        self, positions: torch.Tensor, hidden_states: torch.Tensor, encoder_states: torch.Tensor | None
    ) -> torch.Tensor | few_tokens.Deferred:
        if self.attn.fused:  # the encoder's keys are in their pages before the decoder runs
            qkv = few_tokens.linear(self.qkv_proj, hidden_states)
            attended = self.attn.forward_projected(
                qkv, positions, self.rotary_emb.cos_sin_cache, self.q_norm, self.k_norm
            )
            return few_tokens.deferred(self.o_proj, attended.flatten(1))
        q, k, v = self.qkv(hidden_states, positions)
        cross_k, cross_v = (None, None) if encoder_states is None else self.cross_kv(encoder_states)
        out, _ = self.o_proj(self.attn(q, k, v, cross_k, cross_v).flatten(1))
        return out


class DecoderLayer(nn.Module):
    """The residual is kept apart: a sublayer's norm, its addition and the next sublayer's norm are one step."""

    def __init__(self, config: Any, layer_idx: int, cache_config: CacheConfig, prefix: str) -> None:
        super().__init__()
        self.self_attn = DecoderAttention(config, layer_idx, cache_config, prefix=f"{prefix}.self_attn")
        self.mlp = GatedMLP(config, prefix=f"{prefix}.mlp")
        for name in ("pre_self_attn", "post_self_attn", "pre_feedforward", "post_feedforward"):
            self.add_module(f"{name}_layernorm", GemmaRMSNorm(config.hidden_size, eps=config.rms_norm_eps))

    def forward(
        self,
        positions: torch.Tensor,
        hidden_states: torch.Tensor,
        residual: torch.Tensor,
        next_norm: GemmaRMSNorm,
        encoder_states: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """All `[num_tokens, hidden_size]`.

        Args:
            hidden_states: the residual, normed by this layer's first norm.
            next_norm: what norms the residual behind this layer.

        Returns:
            The new residual, normed by `next_norm`; the new residual; and the normed MLP branch that joined it.
        """
        attended = self.self_attn(positions, hidden_states, encoder_states)
        hidden_states, residual, _ = norm_add_norm(
            attended, residual, self.post_self_attn_layernorm, self.pre_feedforward_layernorm
        )
        return norm_add_norm(
            self.mlp.forward_few(hidden_states), residual, self.post_feedforward_layernorm, next_norm
        )


@support_torch_compile(dynamic_arg_dims={"input_ids": 0, "positions": 0, "encoder_states": 0})
class Decoder(nn.Module, EagleModelMixin):
    """T5Gemma2Decoder.

    `aux_hidden_state_layers` (set by vLLM from the draft's config) are indices L = i + 1; the state delivered at L is
    the output of layer i's post-feedforward norm *before* it joins the residual: that is what drafts are trained on.
    """

    def __init__(self, *, vllm_config: VllmConfig, embed_tokens: ScaledEmbedding, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config.decoder
        self.embed_tokens = embed_tokens
        self.start_layer = 0
        self.layers = nn.ModuleList(
            DecoderLayer(config, i, vllm_config.cache_config, prefix=f"{prefix}.layers.{i}")
            for i in range(config.num_hidden_layers)
        )
        self.norm = GemmaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        encoder_states: torch.Tensor | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, list[torch.Tensor]]:
        """One step over the scheduled tokens.

        Args:
            input_ids, positions: `[num_tokens]`.
            encoder_states: `[num_encoder_tokens, hidden_size]` of the requests admitted in this step, else None.

        Returns:
            Normed states `[num_tokens, hidden_size]`; with taps also the list of tapped states, each of that shape; on
            CUDA one tensor with all of them side by side, since the V2 runner handles each of a list in every step.
        """
        residual = self.embed_tokens.scaled(input_ids)
        hidden_states = self.layers[0].pre_self_attn_layernorm(residual)
        next_norms = [*(layer.pre_self_attn_layernorm for layer in self.layers[1:]), self.norm]
        taps: list[torch.Tensor] = []
        for i, (layer, next_norm) in enumerate(zip(self.layers, next_norms, strict=True)):
            hidden_states, residual, branch = layer(
                positions, hidden_states, residual, next_norm, encoder_states
            )
            self._maybe_add_hidden_state(taps, i + 1, branch, None)
        if not taps:
            return hidden_states
        return hidden_states, ([torch.cat(taps, dim=-1)] if current_platform.is_cuda() else taps)
