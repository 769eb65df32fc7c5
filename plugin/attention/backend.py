"""The attention backend of the decoder's two caches on CUDA: it builds what the merged kernel reads, and nothing else.

vLLM's FlashAttention backend computes a schedule for its own kernel in every step and for every cache (two launches and
some 86 us on the host each), which the merged kernel never looks at; and it has no float32. Nothing here depends on the
dtype, so the caches need no setting of their own. The draft's layers have a
subclass of it (`plugin/drafts/block_attention.py`).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.config import VllmConfig
from vllm.utils.math_utils import cdiv
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    MultipleOf,
    max_decode_query_len,
)
from vllm.v1.kv_cache_interface import CrossAttentionSpec, KVCacheSpec


@dataclass(slots=True)
class MergedMetadata:
    """What the merged attention reads of a step, for one cache.

    Attributes:
        num_actual_tokens: tokens of the step; in a captured graph, the padding's included.
        max_query_len: upper bound of a request's query tokens.
        query_start_loc: `[num_requests + 1]`; a padded request has no query tokens.
        seq_lens: `[num_requests]`, tokens of each request in this cache.
        max_seq_len: upper bound of `seq_lens`.
        block_table: `[num_requests, max_blocks]`.
    """

    num_actual_tokens: int
    max_query_len: int
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    max_seq_len: int
    block_table: torch.Tensor


class MergedMetadataBuilder(AttentionMetadataBuilder[MergedMetadata]):
    """Serves graphs of any mix of query lengths: lengths are read on the device."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.ALWAYS

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: VllmConfig, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.is_cross = isinstance(kv_cache_spec, CrossAttentionSpec)
        # The launch is chosen for a verification wherever there are drafts, also in a step that happens to verify none:
        # a request's rounding must not depend on what the others in its batch are doing.
        self.decode_query_len = max_decode_query_len(vllm_config)
        # vLLM's tables, of either cache, have room for all encoder tokens that a step may bring; the launch is chosen
        # by their width.
        model = vllm_config.model_config
        longest = model.hf_config.max_source_positions if self.is_cross else model.max_model_len
        self.max_blocks = cdiv(longest, kv_cache_spec.block_size)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> MergedMetadata:
        common = common_attn_metadata
        seq_lens, max_seq_len = common.seq_lens, common.max_seq_len
        if self.is_cross:
            assert common.encoder_seq_lens is not None and common.encoder_seq_lens_cpu is not None
            seq_lens, max_seq_len = common.encoder_seq_lens, int(common.encoder_seq_lens_cpu.max())
        return MergedMetadata(
            common.num_actual_tokens,
            max(common.max_query_len, self.decode_query_len),
            common.query_start_loc,
            seq_lens,
            max_seq_len,
            common.block_table_tensor[:, : self.max_blocks],
        )


class MergedImpl(AttentionImpl[MergedMetadata]):
    """The layer's own forward, which nobody calls: `MergedAttention` reads both caches at once."""

    def __init__(
        self, num_heads: int, head_size: int, scale: float, num_kv_heads: int | None = None, *args: Any, **kwargs: Any
    ) -> None:  # fmt: skip
        self.num_heads, self.head_size, self.scale = num_heads, head_size, scale
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype = "auto"

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        raise NotImplementedError("MergedAttention attends over this cache, not the layer that owns it")


class MergedBackend(AttentionBackend):
    """Given to the layers that own the caches; vLLM's choice of a backend does not touch them."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"  # vLLM's one name for a backend that is not its own

    @staticmethod
    def get_impl_cls() -> type[MergedImpl]:
        return MergedImpl

    @staticmethod
    def get_builder_cls() -> type[MergedMetadataBuilder]:
        return MergedMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: KVCacheSpec | None = None) -> list[int | MultipleOf]:
        return [MultipleOf(16)]

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return True  # see `triton_kernel.launch_for`

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return True
