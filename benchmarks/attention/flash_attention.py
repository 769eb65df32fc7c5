"""FlashAttention-3, as vLLM ships it, reading as many bytes of paged keys and values as a workload: the peer."""

from collections.abc import Callable

import torch

from benchmarks.attention.workloads import Workload


def flash_calls(workload: Workload, num_copies: int, page: int = 16) -> list[Callable[[], object]] | None:
    """Calls over one paged cache that holds self and encoder tokens together; None where vLLM has no FA3."""
    try:
        from vllm.vllm_flash_attn import (
            flash_attn_varlen_func,
            get_scheduler_metadata,
            is_fa_version_supported,
        )
    except ImportError:
        return None
    if not is_fa_version_supported(3):
        return None
    n, length = workload.requests, workload.cross_len + workload.self_len
    blocks = -(-length // page)
    q = torch.randn(n * workload.query_len, 4, 256, dtype=torch.bfloat16, device="cuda")
    out = torch.empty_like(q)
    start = torch.arange(0, n + 1, device="cuda", dtype=torch.int32) * workload.query_len
    used = torch.full((n,), length, device="cuda", dtype=torch.int32)
    table = torch.randperm(n * blocks, device="cuda").to(torch.int32).view(n, blocks)
    shape = (n * blocks, page, 1, 512)
    caches = [torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(num_copies)]
    schedule = get_scheduler_metadata(
        batch_size=n, max_seqlen_q=workload.query_len, max_seqlen_k=length, num_heads_q=4, num_heads_kv=1, headdim=256,
        cache_seqlens=used, qkv_dtype=q.dtype, cu_seqlens_q=start, page_size=page, causal=True, num_splits=0,
    )  # fmt: skip

    def call(cache: torch.Tensor) -> object:
        k, v = cache.split(256, dim=-1)
        return flash_attn_varlen_func(
            q=q, k=k, v=v, out=out, cu_seqlens_q=start, max_seqlen_q=workload.query_len, seqused_k=used,
            max_seqlen_k=length, softmax_scale=256**-0.5, causal=True, block_table=table, fa_version=3,
            scheduler_metadata=schedule, num_splits=0,
        )  # fmt: skip

    return [lambda cache=cache: call(cache) for cache in caches]  # type: ignore[misc]
