"""The pieces that encoder and decoder share: the scaled embedding, the gated MLP and the projections of an
attention."""

from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.activation import get_act_and_mul_fn
from vllm.model_executor.layers.layernorm import GemmaRMSNorm
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from plugin.projection import few_tokens


class ScaledEmbedding(VocabParallelEmbedding):
    """The token table of encoder, decoder, head and draft. `forward` is the raw lookup, `scaled` what the verifier
    reads.

    vLLM's proposer puts this very module into a draft whose table is the same, and drafts are trained on raw rows;
    hence the scale must not hide in `forward`.

    Args:
        eoi_token_id: the end-of-image token, whose row is replaced by `eoi_embedding`, unscaled.
    """

    def __init__(self, vocab_size: int, hidden_size: int, eoi_token_id: int, prefix: str) -> None:
        super().__init__(vocab_size, hidden_size, prefix=prefix)
        self.eoi_token_id = eoi_token_id
        self.eoi_embedding = nn.Parameter(torch.zeros(hidden_size), requires_grad=False)
        # transformers rounds the scale to the dtype of the table before it multiplies.
        self.scale = torch.tensor(hidden_size**0.5, dtype=torch.get_default_dtype()).item()

    def scaled(self, input_ids: torch.Tensor) -> torch.Tensor:
        """`[num_tokens]` -> `[num_tokens, hidden_size]`, as T5Gemma2TextScaledWordEmbedding computes it."""
        embeds = self(input_ids) * self.scale
        return torch.where(
            (input_ids == self.eoi_token_id).unsqueeze(-1), self.eoi_embedding.to(embeds.dtype), embeds
        )


class GatedMLP(nn.Module):
    """`down(act(gate x) * up x)`, gate and up in one matrix product."""

    def __init__(self, config: Any, prefix: str) -> None:
        super().__init__()
        self.gate_up_proj = MergedColumnParallelLinear(
            config.hidden_size, [config.intermediate_size] * 2, bias=False, prefix=f"{prefix}.gate_up_proj"
        )
        self.down_proj = RowParallelLinear(
            config.intermediate_size, config.hidden_size, bias=False, prefix=f"{prefix}.down_proj"
        )
        self.act_fn = get_act_and_mul_fn(config.hidden_activation)
        self.gelu = config.hidden_activation == "gelu_pytorch_tanh"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate_up, _ = self.gate_up_proj(x)
        x, _ = self.down_proj(self.act_fn(gate_up))
        return x

    def forward_few(self, x: torch.Tensor) -> torch.Tensor | few_tokens.Deferred:
        """The same of few tokens, with a norm behind: see `plugin.projection.few_tokens`."""
        if self.gelu and few_tokens.plain(self.gate_up_proj):
            x = few_tokens.gated(self.gate_up_proj, x, "gelu")
        else:
            x = self.act_fn(self.gate_up_proj(x)[0])
        return few_tokens.deferred(self.down_proj, x)


class AttentionProjections(nn.Module):
    """q/k/v/o projections, q and k norms over the head dimension, and the layer's rotary embedding.

    Heads: `num_heads` query heads share `num_kv_heads` key/value heads; all of size `head_dim`.
    """

    def __init__(self, config: Any, layer_idx: int, prefix: str) -> None:
        super().__init__()
        layer_type = config.layer_types[layer_idx]
        self.window: int | None = config.sliding_window if layer_type == "sliding_attention" else None
        self.num_heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        self.q_size, self.kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        self.scaling = config.query_pre_attn_scalar**-0.5
        self.qkv_proj = QKVParallelLinear(
            config.hidden_size, self.head_dim, self.num_heads, self.num_kv_heads,
            bias=config.attention_bias, prefix=f"{prefix}.qkv_proj",
        )  # fmt: skip
        self.o_proj = RowParallelLinear(
            self.q_size, config.hidden_size, bias=config.attention_bias, prefix=f"{prefix}.o_proj"
        )
        self.q_norm = GemmaRMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.k_norm = GemmaRMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.rotary_emb = get_rope(
            self.head_dim,
            max_position=config.max_position_embeddings,
            rope_parameters=config.rope_parameters[layer_type],
            is_neox_style=True,
        )

    def qkv(
        self, hidden_states: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """`[num_tokens, hidden_size]` -> normed and rotated q, k and plain v, each `[num_tokens, heads, head_dim]`."""
        qkv, _ = self.qkv_proj(hidden_states)
        q, k, v = qkv.split([self.q_size, self.kv_size, self.kv_size], dim=-1)
        q = self.q_norm(q.unflatten(-1, (self.num_heads, self.head_dim))).flatten(-2)
        k = self.k_norm(k.unflatten(-1, (self.num_kv_heads, self.head_dim))).flatten(-2)
        q, k = self.rotary_emb(positions, q, k)
        return (
            q.unflatten(-1, (self.num_heads, self.head_dim)),
            k.unflatten(-1, (self.num_kv_heads, self.head_dim)),
            v.unflatten(-1, (self.num_kv_heads, self.head_dim)),
        )
