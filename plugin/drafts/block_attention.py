"""The draft's attention on CUDA: every token of a block sees the whole context and the whole block.

That is the merged attention without its causal part: all keys lie in one cache, in the place of the encoder's. vLLM's
FlashAttention backend serves drafts too, but its metadata is planned anew on the host in every step; here they are the
step's own buffers, so that a captured draft needs none, and the splits follow the lengths on the device.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention.attention import get_attention_context
from vllm.model_executor.models.qwen3_dflash import DFlashQwen3Attention
from vllm.utils.torch_utils import direct_register_custom_op
from vllm.v1.attention.backend import AttentionImpl, CommonAttentionMetadata

from plugin.attention.backend import MergedBackend, MergedImpl, MergedMetadata, MergedMetadataBuilder
from plugin.attention.launch_shape import HEAD_DIMS
from plugin.attention.paged import merged_attention, write_pages
from plugin.attention.torch_paged import Pages
from plugin.projection import few_tokens


@dataclass(slots=True)
class BlockMetadata(MergedMetadata):
    """`no_keys`: `[num_requests]` zeros, the lengths of the causal part."""

    no_keys: torch.Tensor


class BlockMetadataBuilder(MergedMetadataBuilder):
    """Everything that changes from step to step stands in buffers that the metadata only point at."""

    supports_draft_decode_metadata_update: bool = True

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: VllmConfig, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._no_keys = torch.zeros(
            vllm_config.scheduler_config.max_num_seqs, dtype=torch.int32, device=device
        )

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> BlockMetadata:
        common = common_attn_metadata
        return BlockMetadata(
            common.num_actual_tokens,
            max(common.max_query_len, self.decode_query_len),
            common.query_start_loc,
            common.seq_lens,
            common.max_seq_len,
            common.block_table_tensor[:, : self.max_blocks],
            self._no_keys[: common.num_reqs],
        )

    def update_draft_decode_metadata(self, metadata: MergedMetadata) -> None:
        """Nothing to do: see the class."""


class BlockImpl(MergedImpl):
    """Called by vLLM's `Attention` layer of each draft layer."""

    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Store `[num_tokens, num_kv_heads, head_dim]` keys and values at `slot_mapping` `[num_tokens]`."""
        n = slot_mapping.shape[0]
        write_pages(kv_cache, slot_mapping, key[:n], value[:n])

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: BlockMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`[num_tokens, num_heads, head_dim]` queries into `output`; keys and values are in their pages by now."""
        if attn_metadata is None:  # memory profiling: shapes only
            return output.zero_()
        m, n = attn_metadata, attn_metadata.num_actual_tokens
        merged_attention(
            query[:n],
            m.query_start_loc,
            m.max_query_len,
            # One page wide, since the launch is chosen by the widths of both tables.
            Pages(kv_cache, m.block_table[:, :1], m.no_keys, 0),
            Pages(kv_cache, m.block_table, m.seq_lens, m.max_seq_len),
            None,
            self.scale,
            output[:n],
        )
        return output


class BlockBackend(MergedBackend):
    """Put into the draft's layers by `attend_in_blocks`."""

    forward_includes_kv_cache_update: ClassVar[bool] = False

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl]:
        return BlockImpl

    @staticmethod
    def get_builder_cls() -> type[BlockMetadataBuilder]:
        return BlockMetadataBuilder

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True


def block_attention_op(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    layer_name: str,
) -> None:
    """Body of the custom op `t5gemma2_block_attention`; see `block_attention`."""
    from plugin.attention.norm_rope import norm_rope_write

    if get_forward_context().attn_metadata is None:  # memory profiling: shapes only
        out.zero_()
        return
    metadata, layer, cache, slots = get_attention_context(layer_name)
    n = metadata.num_actual_tokens
    q = torch.empty_like(out)
    norm_rope_write(
        qkv[:n], q[:n], cache, slots[:n], positions[:n], cos_sin, q_weight, k_weight, eps, offset=0.0
    )
    layer.impl.forward(layer, q, None, None, cache, metadata, out)


def _fake(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    layer_name: str,
) -> None:
    """Shape function for torch.compile: the op writes into `out` only."""


direct_register_custom_op(
    op_name="t5gemma2_block_attention",
    op_func=block_attention_op,
    mutates_args=["out"],
    fake_impl=_fake,
)


def block_attention(
    attention: DFlashQwen3Attention, positions: torch.Tensor, hidden_states: torch.Tensor
) -> torch.Tensor | few_tokens.Deferred:
    """`DFlashQwen3Attention.forward` with norm, rotation and page write in one launch, for a `ResidualNorm` behind it:
    `[num_tokens, hidden_size]`."""
    qkv = few_tokens.linear(attention.qkv_proj, hidden_states)
    out = qkv.new_empty(qkv.shape[0], attention.num_heads, attention.head_dim)
    torch.ops.vllm.t5gemma2_block_attention(
        qkv, positions, attention.rotary_emb.cos_sin_cache, attention.q_norm.weight, attention.k_norm.weight,
        attention.q_norm.variance_epsilon, out, attention.attn.layer_name,
    )  # fmt: skip
    return few_tokens.deferred(attention.o_proj, out.flatten(1))


def attend_in_blocks(attention: DFlashQwen3Attention) -> bool:
    """Give a draft layer this backend, unless it is causal or has a window, sinks or a head size that no kernel serves.

    vLLM builds the layer with the backend of its own choice, which `DFlashQwen3Attention` leaves no way to name.
    Unnecessary once it does.

    Returns:
        Whether the layer has it, so that `block_attention` serves.
    """
    layer = attention.attn
    if (
        attention.causal
        or attention.sliding_window is not None
        or attention.attention_sink_bias is not None
        or attention.v_scale is not None
        or not attention.rotary_emb.is_neox_style
        or layer.head_size not in HEAD_DIMS
    ):
        return False
    layer.attn_backend = BlockBackend
    layer.impl = BlockImpl(layer.num_heads, layer.head_size, attention.scaling, layer.num_kv_heads)
    return True
