"""The merged attention on the GPU: entry points of the Triton programs, peers of `torch_paged.py` in meaning.

Nothing here waits for the device, and grids and shapes depend only on host numbers, so a step can be captured in a CUDA
graph and replayed with other lengths, block tables and slots. A cache is `[num_blocks, num_kv_heads, block_size,
2 * head_dim]` in any strides whose last is 1 (all of vLLM's KV cache layouts); self and cross pages may differ in size.

Runs on the CPU too, for tests, when `TRITON_INTERPRET=1` is set before the first import.
"""

import math
from functools import cache

import torch

from plugin.attention.launch_shape import (
    HEAD_DIMS,
    LaunchShape,
    choose_launch_shape,
    join_block_d,
    join_block_e,
    join_block_r,
    join_block_s,
    join_overlaps,
    power_of_two,
)
from plugin.attention.torch_paged import Pages
from plugin.attention.triton_attend import attend_kernel, write_kernel
from plugin.attention.triton_split import join_kernel

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
UNWINDOWED = 2**30
"""A window that hides no key; far enough from 2**31 that positions minus it stay 32-bit integers."""

INTERPRETED_SMS = 4

COUNTERS = 2**16
"""Slices of row blocks, over all KV heads and requests, up to which splits are joined in the launch that attends."""


@cache
def launches_overlap(device: torch.device) -> bool:
    """Whether a launch may start while the one before drains: programmatic dependent launch, Hopper and later."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@cache
def _num_sms(device: torch.device) -> int:
    if device.type != "cuda":
        return INTERPRETED_SMS
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def _finished(device: torch.device) -> torch.Tensor:
    """Zeros that `attend_kernel` counts finished splits in and leaves zero; one buffer for all launches of a stream.

    The first call must not be captured, or replays would count in memory that belongs to the graph.
    """
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("the merged attention must run once before it is captured in a CUDA graph")
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)


def check_cache(name: str, kv_cache: torch.Tensor, num_kv_heads: int, head_dim: int) -> None:
    """Raise ValueError where the programs cannot read or write `kv_cache`."""
    if kv_cache.dim() != 4 or kv_cache.shape[1] != num_kv_heads or kv_cache.shape[3] != 2 * head_dim:
        raise ValueError(
            f"{name} is {list(kv_cache.shape)}, not [num_blocks, {num_kv_heads}, block_size, {2 * head_dim}]"
        )
    if kv_cache.stride(3) != 1:
        raise ValueError(f"{name} has stride {kv_cache.stride(3)} in its last dimension, not 1")
    if kv_cache.dtype not in DTYPES:
        raise ValueError(f"{name} is {kv_cache.dtype}, not one of {', '.join(str(d) for d in DTYPES)}")


def write_kv(kv_cache: torch.Tensor, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Store k and v, each `[num_tokens, num_kv_heads, head_dim]`, at `slots` `[num_tokens]`: block * block_size + slot.

    Slots below zero are padding and are dropped. k and v may be views whose last stride is 1.
    """
    num_tokens, num_kv_heads, head_dim = k.shape
    check_cache("kv_cache", kv_cache, num_kv_heads, head_dim)
    if slots.shape != (num_tokens,) or v.shape != k.shape:
        raise ValueError(f"slots are {list(slots.shape)} and v {list(v.shape)} for k of {list(k.shape)}")
    if k.stride(2) != 1 or v.stride(2) != 1:
        raise ValueError(
            f"k and v have strides {k.stride(2)} and {v.stride(2)} in their last dimension, not 1"
        )
    if num_tokens == 0:
        return
    overlap = launches_overlap(k.device)
    write_kernel[(num_tokens,)](
        kv_cache, slots, k, v, *kv_cache.stride()[:3], k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        NUM_KV_HEADS=num_kv_heads, BLOCK_H=power_of_two(num_kv_heads), HEAD_DIM=head_dim, PAGE=kv_cache.shape[2],
        OVERLAP=overlap, num_warps=1, launch_pdl=overlap,
    )  # fmt: skip


def whole_tiles(block_n: int, *pages: int) -> int:
    """The tile size, reduced until every page that holds a tile holds whole ones: the programs look up one page a tile.

    Pages smaller than a tile are looked up key by key and set no limit.
    """
    for page in pages:
        if page >= block_n and page % block_n:
            return whole_tiles(math.gcd(block_n, page), *pages)
    return block_n


def launch_for(
    q: torch.Tensor,
    num_requests: int,
    max_query_len: int,
    self_pages: Pages,
    cross_pages: Pages,
    window: int | None,
) -> LaunchShape:
    """The launch of one step, from numbers on the host: what the block tables have room for bounds the lengths.

    Under VLLM_BATCH_INVARIANT it is that of a request alone, which costs large batches time.
    """
    from vllm import envs

    if envs.VLLM_BATCH_INVARIANT:
        num_requests = 1
    num_kv_heads, page = self_pages.cache.shape[1:3]
    self_bound = self_pages.block_table.shape[1] * page
    if window is not None:
        self_bound = min(self_bound, window + max_query_len)
    cross_bound = cross_pages.block_table.shape[1] * cross_pages.cache.shape[2]
    return choose_launch_shape(
        max_query_len * (q.shape[1] // num_kv_heads), num_requests, num_kv_heads, q.element_size(),
        self_bound + cross_bound, _num_sms(q.device), q.shape[2],
    )  # fmt: skip


def merged_attention(
    q: torch.Tensor,
    query_start: torch.Tensor,
    max_query_len: int,
    self_pages: Pages,
    cross_pages: Pages,
    window: int | None,
    scale: float,
    out: torch.Tensor,
    *,
    launch: LaunchShape | None = None,
) -> None:
    """One softmax over the causal (and windowed) self keys and all encoder keys of each request, into `out`.

    Rows of `out` behind the last request's tokens are left as they are. A query that sees no key gets zeros. The
    rounding of a request depends on its own lengths and on the launch (batch size, longest query), never on the other
    requests' lengths. No upper bounds of the lengths are read (`Pages.max_len`): they differ between capture and an
    eager step, and would choose another launch for the same batch.

    On Hopper the launch begins while the one before it drains: that one must not write `query_start`, the lengths or
    the block tables.

    Args:
        q: `[num_tokens, num_heads, head_dim]`, requests one after another; last stride 1.
        query_start: `[num_requests + 1]`, int32, first query token of each request.
        max_query_len: upper bound of a request's query tokens, on the host.
        self_pages, cross_pages: block tables and lengths are int32; a request's length counts this step's tokens.
        window: None, or how many most recent self keys (the query's own included) a query sees. Encoder keys are never
            windowed.
        scale: factor on the scores.
        out: as q.
        launch: overrides the choice of `launch_for`.

    Raises:
        ValueError: a shape, stride or dtype that the kernel does not serve.
    """
    num_tokens, num_heads, head_dim = q.shape
    num_requests = query_start.shape[0] - 1
    mine, theirs = self_pages.cache, cross_pages.cache
    num_kv_heads = mine.shape[1]
    if head_dim not in HEAD_DIMS:
        raise ValueError(f"head_dim is {head_dim}, not one of {HEAD_DIMS}")
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads do not divide over {num_kv_heads} KV heads")
    check_cache("self_cache", mine, num_kv_heads, head_dim)
    check_cache("cross_cache", theirs, num_kv_heads, head_dim)
    if not q.dtype == out.dtype == mine.dtype == theirs.dtype:
        raise ValueError(
            f"q is {q.dtype}, out {out.dtype}, self_cache {mine.dtype}, cross_cache {theirs.dtype}: not one"
        )
    if q.stride(2) != 1 or out.stride(2) != 1:
        raise ValueError(
            f"q and out have strides {q.stride(2)} and {out.stride(2)} in their last dimension, not 1"
        )
    if num_tokens == 0 or num_requests == 0:
        return

    group = num_heads // num_kv_heads
    if launch is None:
        launch = launch_for(q, num_requests, max_query_len, self_pages, cross_pages, window)
    block_n = whole_tiles(launch.block_n, mine.shape[2], theirs.shape[2])
    split_tiles, splits = max(launch.split_tokens // block_n, 1), launch.splits
    if head_dim % launch.slices or head_dim // launch.slices < 16:
        raise ValueError(f"{launch.slices} slices of head_dim {head_dim} are not of 16 values at least")
    counters = num_requests * num_kv_heads * launch.row_blocks * launch.slices
    fused = splits > 1 and launch.fused and counters <= COUNTERS
    overlap = launches_overlap(q.device)
    window = UNWINDOWED if window is None else window
    partial, lse = out, out
    if splits > 1:
        # Joined apart they are a good part of all traffic, and float16 is four times as exact as a bfloat16 result.
        dtype = torch.float32 if fused or q.dtype == torch.float32 else torch.float16
        partial = torch.empty(splits, num_tokens, num_heads, head_dim, dtype=dtype, device=q.device)
        lse = torch.empty(splits, num_tokens, num_heads, dtype=torch.float32, device=q.device)
    attend_kernel[(launch.slices * splits * launch.row_blocks, num_kv_heads, num_requests)](
        q, out, partial, lse, _finished(q.device) if fused else out, query_start,
        mine, self_pages.block_table, self_pages.seq_lens, theirs, cross_pages.block_table, cross_pages.seq_lens,
        num_tokens, window, split_tiles, splits, scale * math.log2(math.e),
        q.stride(0), q.stride(1), out.stride(0), out.stride(1),
        *mine.stride()[:3], self_pages.block_table.stride(0), *theirs.stride()[:3], cross_pages.block_table.stride(0),
        NUM_HEADS=num_heads, GROUP=group, HEAD_DIM=head_dim,
        BLOCK_M=launch.block_m, BLOCK_N=block_n, SELF_PAGE=mine.shape[2], CROSS_PAGE=theirs.shape[2],
        SLICES=launch.slices, SPLIT=splits > 1, JOIN=fused, BLOCK_S=join_block_s(splits) if fused else 1,
        BLOCK_E=join_block_e(splits, launch.block_m, head_dim // launch.slices) if fused else 1,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        OVERLAP=overlap, num_warps=launch.num_warps, num_stages=launch.num_stages, launch_pdl=overlap,
    )  # fmt: skip
    if splits > 1 and not fused:
        block_r, block_d = join_block_r(splits), join_block_d(splits, head_dim)
        programs = -(-max_query_len * group // block_r) * (head_dim // block_d)
        beside = join_overlaps(splits, programs * num_kv_heads * num_requests, _num_sms(q.device))
        join_kernel[(programs, num_kv_heads, num_requests)](
            out, partial, lse, query_start, self_pages.seq_lens, cross_pages.seq_lens,
            num_tokens, window, split_tiles, splits, out.stride(0), out.stride(1),
            NUM_HEADS=num_heads, GROUP=group, HEAD_DIM=head_dim, BLOCK_M=launch.block_m, BLOCK_N=block_n,
            BLOCK_R=block_r, BLOCK_D=block_d, BLOCK_S=power_of_two(splits), OVERLAP=overlap, NEXT=beside,
            num_warps=4, launch_pdl=overlap,
        )  # fmt: skip
