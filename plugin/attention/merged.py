"""The merged attention as a vLLM layer: two paged caches, one softmax.

vLLM knows self-attention layers and cross-attention layers, each with a cache of its own. A T5Gemma 2 decoder layer is
both at once: this module owns one of each for their caches and metadata, never calls their own forward, and computes
the attention itself in one opaque custom op (opaque to torch.compile, which must not trace through caches).

No state of a request lives here: block tables and lengths come with each step, so requests may join, leave, be
preempted and be reordered freely.
"""

from typing import Any

import torch
from torch import nn
from vllm.config import CacheConfig, VllmConfig
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention import Attention, CrossAttention
from vllm.model_executor.layers.attention.attention import get_attention_context
from vllm.model_executor.layers.layernorm import GemmaRMSNorm
from vllm.platforms import current_platform
from vllm.utils.torch_utils import direct_register_custom_op
from vllm.v1.attention.backend import AttentionType
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheSpec

from plugin.attention.backend import MergedBackend
from plugin.attention.paged import merged_attention, write_pages
from plugin.attention.torch_paged import Pages


class SelfCache(Attention):
    """Owner of a layer's self K/V pages. Always declared as full attention, also where the layer slides.

    vLLM's V1 proposer asserts that all draft layers share one KV cache group; with windowed specs beside full ones the
    grouping splits them for some layer counts. The price is that sliding layers keep all decoder tokens; the window
    itself is applied by the mask. Unnecessary once the V1 proposer serves drafts over several groups, as V2's does.
    """

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> KVCacheSpec:
        return FullAttentionSpec(
            block_size=vllm_config.cache_config.block_size,
            num_kv_heads=self.num_kv_heads,
            head_size=self.head_size,
            head_size_v=self.head_size_v,
            dtype=self.kv_cache_torch_dtype,
        )


class CrossCache(CrossAttention):
    """Owner of a layer's encoder K/V pages. With `attn_backend`, vLLM's cross layer without its choice of a backend."""

    def __init__(self, attn_backend: type[MergedBackend] | None = None, **shape: Any) -> None:
        if attn_backend is None:
            super().__init__(**shape)
        else:
            Attention.__init__(
                self, **shape, attn_backend=attn_backend, attn_type=AttentionType.ENCODER_DECODER
            )


class MergedAttention(nn.Module):
    """Decoder attention over `[causal self keys | all encoder keys]`.

    `fused` (on CUDA) says that `forward_projected` serves: one launch from the projection to the pages.

    Args:
        window: None, or the sliding window of the self part.
        scale: factor on the scores.
    """

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        window: int | None,
        cache_config: CacheConfig,
        prefix: str,
    ) -> None:
        super().__init__()
        if cache_config.cache_dtype not in ("auto", "bfloat16", "float16"):
            raise ValueError(
                f"kv_cache_dtype is {cache_config.cache_dtype}: T5Gemma 2 needs an unquantised KV cache"
            )
        self.scale, self.window = scale, window
        shape: dict[str, Any] = {
            "num_heads": num_heads, "head_size": head_dim, "scale": scale, "num_kv_heads": num_kv_heads,
            "cache_config": cache_config,
        }  # fmt: skip
        self.num_heads, self.head_dim = num_heads, head_dim
        self.fused: bool = current_platform.is_cuda()
        if self.fused:
            shape["attn_backend"] = MergedBackend
        self.self_cache = SelfCache(**shape, prefix=f"{prefix}.self_cache")
        # Attention falls back to the model-level window, which would make the spec a sliding one in vLLM's eyes.
        self.self_cache.sliding_window = None
        self.cross_cache = CrossCache(**shape, prefix=f"{prefix}.cross_cache")
        self.self_name, self.cross_name = f"{prefix}.self_cache", f"{prefix}.cross_cache"

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cross_k: torch.Tensor | None,
        cross_v: torch.Tensor | None,
    ) -> torch.Tensor:
        """Store this step's keys and values, then attend.

        Args:
            q: `[num_tokens, num_heads, head_dim]`; k, v: `[num_tokens, num_kv_heads, head_dim]`.
            cross_k, cross_v: `[num_encoder_tokens, num_kv_heads, head_dim]` of the requests admitted in this step, in
                batch order; None when none was.

        Returns:
            `[num_tokens, num_heads, head_dim]`.
        """
        out = torch.empty_like(q)
        torch.ops.vllm.t5gemma2_merged_attention(
            q, k, v, cross_k, cross_v, out, self.self_name, self.cross_name, self.scale, self.window
        )
        return out

    def forward_projected(
        self,
        qkv: torch.Tensor,
        positions: torch.Tensor,
        cos_sin: torch.Tensor,
        q_norm: GemmaRMSNorm,
        k_norm: GemmaRMSNorm,
    ) -> torch.Tensor:
        """Norm and rotate queries and keys, store keys and values, then attend.

        Args:
            qkv: `[num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]`, as projected.
            positions: `[num_tokens]`.
            cos_sin: `[max_positions, head_dim]`, the rotary embedding's table.

        Returns:
            `[num_tokens, num_heads, head_dim]`.
        """
        out = qkv.new_empty(qkv.shape[0], self.num_heads, self.head_dim)
        torch.ops.vllm.t5gemma2_projected_attention(
            qkv, positions, cos_sin, q_norm.weight, k_norm.weight, q_norm.variance_epsilon, out,
            self.self_name, self.cross_name, self.scale, self.window,
        )  # fmt: skip
        return out


def write_cross(
    cache: torch.Tensor, slots: torch.Tensor, cross_k: torch.Tensor, cross_v: torch.Tensor
) -> None:
    """Store `[num_encoder_tokens, num_kv_heads, head_dim]` keys and values at the cross metadata's own slots.

    The slots of the forward context belong to another cache group.

    Raises:
        RuntimeError: more or fewer encoder states than slots.
    """
    if slots.shape[0] != cross_k.shape[0]:
        raise RuntimeError(f"{cross_k.shape[0]} encoder states for {slots.shape[0]} slots of the cross cache")
    write_pages(cache, slots, cross_k, cross_v)


def _metadata(layer_name: str) -> Any:
    """This step's attention metadata of a layer, or None in a profiling run."""
    if get_forward_context().attn_metadata is None:
        return None
    return get_attention_context(layer_name)[0]


def merged_attention_op(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cross_k: torch.Tensor | None,
    cross_v: torch.Tensor | None,
    out: torch.Tensor,
    self_name: str,
    cross_name: str,
    scale: float,
    window: int | None,
) -> None:
    """Body of the custom op `t5gemma2_merged_attention`; see `MergedAttention.forward`."""
    metadata = _metadata(self_name)
    if metadata is None:  # memory profiling: shapes only
        out.zero_()
        return
    _, _, self_cache, self_slots = get_attention_context(self_name)
    num_tokens = metadata.num_actual_tokens
    write_pages(self_cache, self_slots[:num_tokens], k[:num_tokens], v[:num_tokens])
    if cross_k is not None and cross_v is not None:
        cross_metadata, _, cross_cache, _ = get_attention_context(cross_name)
        write_cross(cross_cache, cross_metadata.slot_mapping, cross_k, cross_v)
    _attend(q, out, self_name, cross_name, scale, window)


def _attend(
    q: torch.Tensor, out: torch.Tensor, self_name: str, cross_name: str, scale: float, window: int | None
) -> None:
    """Attend over both caches, which hold this step's keys; rows of `out` behind the step's tokens become zero."""
    metadata, _, self_cache, _ = get_attention_context(self_name)
    cross_metadata, _, cross_cache, _ = get_attention_context(cross_name)
    num_tokens = metadata.num_actual_tokens
    merged_attention(
        q[:num_tokens],
        metadata.query_start_loc,
        metadata.max_query_len,
        Pages(self_cache, metadata.block_table, metadata.seq_lens, metadata.max_seq_len),
        Pages(cross_cache, cross_metadata.block_table, cross_metadata.seq_lens, cross_metadata.max_seq_len),
        window,
        scale,
        out[:num_tokens],
    )
    if num_tokens < out.shape[0]:
        out[num_tokens:].zero_()


def projected_attention_op(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    self_name: str,
    cross_name: str,
    scale: float,
    window: int | None,
) -> None:
    """Body of the custom op `t5gemma2_projected_attention`; see `MergedAttention.forward_projected`."""
    from plugin.attention.norm_rope import norm_rope_write

    metadata = _metadata(self_name)
    if metadata is None:  # memory profiling: shapes only
        out.zero_()
        return
    _, _, cache, slots = get_attention_context(self_name)
    n = metadata.num_actual_tokens
    q = torch.empty_like(out)
    norm_rope_write(qkv[:n], q[:n], cache, slots[:n], positions[:n], cos_sin, q_weight, k_weight, eps)
    _attend(q, out, self_name, cross_name, scale, window)


def _fake(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cross_k: torch.Tensor | None,
    cross_v: torch.Tensor | None,
    out: torch.Tensor,
    self_name: str,
    cross_name: str,
    scale: float,
    window: int | None,
) -> None:
    """Shape function for torch.compile: the op writes into `out` only."""


def _projected_fake(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    self_name: str,
    cross_name: str,
    scale: float,
    window: int | None,
) -> None:
    """Shape function for torch.compile: the op writes into `out` only."""


direct_register_custom_op(
    op_name="t5gemma2_merged_attention",
    op_func=merged_attention_op,
    mutates_args=["out"],
    fake_impl=_fake,
)
direct_register_custom_op(
    op_name="t5gemma2_projected_attention",
    op_func=projected_attention_op,
    mutates_args=["out"],
    fake_impl=_projected_fake,
)
