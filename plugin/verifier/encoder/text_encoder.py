"""The text encoder: runs over all new prompts that a step admits, and leaves one state a prompt token."""

from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.layernorm import GemmaRMSNorm

from plugin.attention.bidirectional import bidirectional_attention
from plugin.projection import few_tokens
from plugin.verifier.encoder.passes import EncoderPass
from plugin.verifier.layers import AttentionProjections, GatedMLP, ScaledEmbedding


class EncoderAttention(AttentionProjections):
    """Bidirectional attention of each prompt to itself."""

    def attended(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens: torch.Tensor, max_len: int
    ) -> torch.Tensor:
        """`[num_tokens, num_heads, head_dim]`; see `bidirectional_attention`."""
        return bidirectional_attention(q, k, v, cu_seqlens, max_len, self.window, self.scaling)

    def projected(self, hidden_states: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """`[num_tokens, hidden_size]` -> queries and keys, normed and rotated, and plain values, side by side:
        `[num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]`. On a GPU the norms and the rotation are one launch.
        """
        if not _has_programs(hidden_states):
            return torch.cat([x.flatten(1) for x in self.qkv(hidden_states, positions)], dim=1)
        from plugin.attention.norm_rope import norm_rope_in_place

        qkv = few_tokens.linear(self.qkv_proj, hidden_states)
        norm_rope_in_place(
            qkv, positions, self.rotary_emb.cos_sin_cache, self.q_norm.weight, self.k_norm.weight,
            self.q_norm.variance_epsilon, self.num_heads, self.num_kv_heads,
        )  # fmt: skip
        return qkv

    def heads(self, projected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values in `projected`, each `[num_tokens, heads, head_dim]`."""
        heads = [self.num_heads, self.num_kv_heads, self.num_kv_heads]
        q, k, v = projected.unflatten(-1, (-1, self.head_dim)).split(heads, dim=1)
        return q, k, v

    def output(self, attended: torch.Tensor) -> torch.Tensor | few_tokens.Deferred:
        """`[num_rows, num_heads, head_dim]` -> `[num_rows, hidden_size]`, for a norm behind it."""
        x = attended.flatten(1)
        if _has_programs(x):
            return few_tokens.deferred(self.o_proj, x)
        out: torch.Tensor = self.o_proj(x)[0]
        return out


class EncoderMLP(GatedMLP):
    """On a GPU with vLLM's own kernel where an activation stands alone: the engine leaves such operations to
    torch.compile, which the encoder does not go through.
    """

    def forward_few(self, x: torch.Tensor) -> torch.Tensor | few_tokens.Deferred:
        if not _has_programs(x):
            out: torch.Tensor = self(x)
            return out
        if self.gelu and few_tokens.plain(self.gate_up_proj):
            return super().forward_few(x)
        gate_up, _ = self.gate_up_proj(x)
        return few_tokens.deferred(self.down_proj, self.act_fn.forward_cuda(gate_up))


class EncoderLayer(nn.Module):
    """Sandwich-normed layer: `x + post_norm(attn(pre_norm x))`, then the same around the MLP.

    Norms at the seams are taken with the sum before them, so a layer ends with the norm of the next.
    """

    def __init__(self, config: Any, layer_idx: int, prefix: str) -> None:
        super().__init__()
        self.self_attn = EncoderAttention(config, layer_idx, prefix=f"{prefix}.self_attn")
        self.mlp = EncoderMLP(config, prefix=f"{prefix}.mlp")
        for name in ("pre_self_attn", "post_self_attn", "pre_feedforward", "post_feedforward"):
            self.add_module(f"{name}_layernorm", GemmaRMSNorm(config.hidden_size, eps=config.rms_norm_eps))

    def first_norm(self, residual: torch.Tensor) -> torch.Tensor:
        """`[num_tokens, hidden_size]` -> what the first layer's attention reads."""
        normed: torch.Tensor = self.pre_self_attn_layernorm(residual)
        return normed

    def rest(self, residual: torch.Tensor, attended: torch.Tensor, next_norm: GemmaRMSNorm) -> torch.Tensor:
        """All that follows the attention, which is the same for any rows of the layer.

        Args:
            residual: `[num_rows, hidden_size]`, changed in place into the next layer's.
            attended: `[num_rows, num_heads, head_dim]`.
            next_norm: the norm of the residual behind this layer.

        Returns:
            The new residual, normed, `[num_rows, hidden_size]`.
        """
        branch = self.self_attn.output(attended)
        normed = _add_and_norm(
            residual, branch, self.post_self_attn_layernorm, self.pre_feedforward_layernorm
        )
        return _add_and_norm(
            residual, self.mlp.forward_few(normed), self.post_feedforward_layernorm, next_norm
        )


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
        whole = EncoderPass(self, ids, positions, cu_seqlens, max_len)
        whole.advance(whole.num_rows)
        return whole.states

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """`[num_tokens]` -> `[num_tokens, hidden_size]`, what the first layer's residual is."""
        return self._embed_tokens[0].scaled(ids)

    def norm_after(self, layer: int) -> GemmaRMSNorm:
        """The norm of the residual behind a layer."""
        if layer + 1 < len(self.layers):
            return self.layers[layer + 1].pre_self_attn_layernorm
        return self.norm


def _has_programs(x: torch.Tensor) -> bool:
    """Whether GPU programs serve tensors where `x` is: vLLM's norm is eight launches outside of torch.compile."""
    return x.device.type == "cuda"


def _add_and_norm(
    residual: torch.Tensor,
    branch: torch.Tensor | few_tokens.Deferred,
    post: GemmaRMSNorm,
    pre: GemmaRMSNorm,
) -> torch.Tensor:
    """Adds `post(branch)` to `residual`, in place; returns `pre` of that. Of few tokens a branch that is deferred comes
    in parts, which the norm's program adds up."""
    if isinstance(branch, few_tokens.Deferred):
        branch = few_tokens.unsummed(branch.x, branch.weight)
    if not _has_programs(residual):
        residual += post(branch)
        return pre(residual)
    from plugin.projection.triton_residual_norm import norm_add_norm

    normed, _, _ = norm_add_norm(
        branch, residual, post.weight, pre.weight, pre.variance_epsilon, rounded=True, in_place=True
    )
    return normed
