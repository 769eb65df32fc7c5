"""The text encoder: runs once a request, over all prompts that a step admits, and leaves one state a prompt token."""

from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.layernorm import GemmaRMSNorm

from plugin.attention.bidirectional import bidirectional_attention
from plugin.verifier.layers import AttentionProjections, GatedMLP, ScaledEmbedding


class EncoderAttention(AttentionProjections):
    """Bidirectional attention of each prompt to itself."""

    def forward(
        self, hidden_states: torch.Tensor, positions: torch.Tensor, cu_seqlens: torch.Tensor, max_len: int
    ) -> torch.Tensor:
        q, k, v = self.projected(hidden_states, positions)
        out = bidirectional_attention(q, k, v, cu_seqlens, max_len, self.window, self.scaling)
        out, _ = self.o_proj(out.flatten(1))
        return out

    def projected(
        self, hidden_states: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """As `qkv`; on a GPU the norms and the rotation are one launch."""
        if not _has_programs(hidden_states):
            return self.qkv(hidden_states, positions)
        from plugin.attention.norm_rope import norm_rope_in_place

        qkv, _ = self.qkv_proj(hidden_states)
        heads, kv_heads = self.num_heads, self.num_kv_heads
        norm_rope_in_place(
            qkv, positions, self.rotary_emb.cos_sin_cache, self.q_norm.weight, self.k_norm.weight,
            self.q_norm.variance_epsilon, heads, kv_heads,
        )  # fmt: skip
        q, k, v = qkv.unflatten(-1, (-1, self.head_dim)).split([heads, kv_heads, kv_heads], dim=1)
        return q, k, v


class EncoderMLP(GatedMLP):
    """On a GPU with vLLM's own kernel between the products: the engine leaves such operations to torch.compile, which
    the encoder does not go through.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not _has_programs(x):
            return super().forward(x)
        gate_up, _ = self.gate_up_proj(x)
        x, _ = self.down_proj(self.act_fn.forward_cuda(gate_up))
        return x


class EncoderLayer(nn.Module):
    """Sandwich-normed layer: `x + post_norm(attn(pre_norm x))`, then the same around the MLP.

    Norms at the seams are taken with the sum before them, so `TextEncoder` walks the layers' parts itself.
    """

    def __init__(self, config: Any, layer_idx: int, prefix: str) -> None:
        super().__init__()
        self.self_attn = EncoderAttention(config, layer_idx, prefix=f"{prefix}.self_attn")
        self.mlp = EncoderMLP(config, prefix=f"{prefix}.mlp")
        for name in ("pre_self_attn", "post_self_attn", "pre_feedforward", "post_feedforward"):
            self.add_module(f"{name}_layernorm", GemmaRMSNorm(config.hidden_size, eps=config.rms_norm_eps))


class TextEncoder(nn.Module):
    """T5Gemma2TextEncoder. The vision tower of the published checkpoints is not built: prompts are text."""

    def __init__(self, config: Any, embed_tokens: ScaledEmbedding, prefix: str) -> None:
        super().__init__()
        # Shared with the decoder; kept out of this module's parameters so that the weights load once.
        self._embed_tokens = [embed_tokens]
        self.hidden_size = config.hidden_size
        self.layers = nn.ModuleList(
            EncoderLayer(config, i, prefix=f"{prefix}.layers.{i}") for i in range(config.num_hidden_layers)
        )
        self.norm = GemmaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    @property
    def device(self) -> torch.device:
        return self.norm.weight.device

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, cu_seqlens: torch.Tensor, max_len: int
    ) -> torch.Tensor:
        """Encode prompts of any lengths together.

        Args:
            ids, positions: `[num_tokens]`, prompts one after another.
            cu_seqlens: `[num_prompts + 1]`, int32, where each prompt begins and the last ends.
            max_len: upper bound of a prompt's tokens, on the host.

        Returns:
            Normed encoder states, `[num_tokens, hidden_size]`.
        """
        residual = self._embed_tokens[0].scaled(ids)
        pre_norms = [layer.pre_self_attn_layernorm for layer in self.layers] + [self.norm]
        normed = pre_norms[0](residual)
        for layer, next_pre_norm in zip(self.layers, pre_norms[1:], strict=True):
            branch = layer.self_attn(normed, positions, cu_seqlens, max_len)
            residual, normed = _add_and_norm(
                residual, branch, layer.post_self_attn_layernorm, layer.pre_feedforward_layernorm
            )
            branch = layer.mlp(normed)
            residual, normed = _add_and_norm(
                residual, branch, layer.post_feedforward_layernorm, next_pre_norm
            )
        return normed


def _has_programs(x: torch.Tensor) -> bool:
    """Whether GPU programs serve tensors where `x` is: vLLM's norm is eight launches outside of torch.compile."""
    return x.device.type == "cuda"


def _add_and_norm(
    residual: torch.Tensor, branch: torch.Tensor, post: GemmaRMSNorm, pre: GemmaRMSNorm
) -> tuple[torch.Tensor, torch.Tensor]:
    """`residual + post(branch)`, and `pre` of that."""
    if not _has_programs(residual):
        residual = residual + post(branch)
        return residual, pre(residual)
    from plugin.verifier.triton_residual_norm import norm_add_norm

    normed, total, _ = norm_add_norm(
        branch, residual, post.weight, pre.weight, pre.variance_epsilon, rounded=True
    )
    return total, normed
