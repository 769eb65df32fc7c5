"""The merged attention on the GPU: entry points of the Triton programs, peers of `torch_paged.py` in meaning.

Nothing here waits for the device, and grids and shapes depend only on host numbers, so a step can be captured in a CUDA
graph and replayed with other lengths, block tables and slots. A cache is `[num_blocks, num_kv_heads, block_size,
2 * head_dim]` in any strides whose last is 1 (all of vLLM's KV cache layouts); self and cross pages may differ in size.

Runs on the CPU too, for tests, when `TRITON_INTERPRET=1` is set before the first import.
"""

import math
from functools import cache

import torch

from plugin.attention.launch_shape import LaunchShape, choose_launch_shape, join_block_d, power_of_two
from plugin.attention.triton_attend import attend_kernel, join_kernel, write_kernel

HEAD_DIMS = (32, 64, 128, 256)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
UNWINDOWED = 2**30
"""A window that hides no key; far enough from 2**31 that positions minus it stay 32-bit integers."""

INTERPRETED_SMS = 4


@cache
def launches_overlap(device: torch.device) -> bool:
    """Whether a launch may start while the one before drains: programmatic dependent launch, Hopper and later."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@cache
def _num_sms(device: torch.device) -> int:
    if device.type != "cuda":
        return INTERPRETED_SMS
    return torch.cuda.get_device_properties(device).multi_processor_count


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


def merged_attention(
    q: torch.Tensor,
    query_start: torch.Tensor,
    max_query_len: int,
    self_cache: torch.Tensor,
    self_block_table: torch.Tensor,
    self_seq_lens: torch.Tensor,
    cross_cache: torch.Tensor,
    cross_block_table: torch.Tensor,
    cross_seq_lens: torch.Tensor,
    window: int | None,
    scale: float,
    out: torch.Tensor,
    *,
    max_self_len: int | None = None,
    max_cross_len: int | None = None,
    launch: LaunchShape | None = None,
) -> None:
    """One softmax over the causal (and windowed) self keys and all encoder keys of each request, into `out`.

    Rows of `out` behind the last request's tokens are left as they are. A query that sees no key gets zeros.

    Args:
        q: `[num_tokens, num_heads, head_dim]`, requests one after another; last stride 1.
        query_start: `[num_requests + 1]`, int32, first query token of each request.
        max_query_len: upper bound of a request's query tokens, on the host.
        self_cache, cross_cache: `[num_blocks, num_kv_heads, block_size, 2 * head_dim]`.
        self_block_table, cross_block_table: `[num_requests, max_blocks]`, int32.
        self_seq_lens, cross_seq_lens: `[num_requests]`, int32, tokens in each cache, this step's included.
        window: None, or how many most recent self keys (the query's own included) a query sees. Encoder keys are never
            windowed.
        scale: factor on the scores.
        out: as q.
        max_self_len, max_cross_len: upper bounds of the lengths, on the host; None for what the block tables hold.
        launch: overrides the choice of `choose_launch_shape`.

    Raises:
        ValueError: a shape, stride or dtype that the kernel does not serve.
    """
    num_tokens, num_heads, head_dim = q.shape
    num_requests = query_start.shape[0] - 1
    num_kv_heads = self_cache.shape[1]
    if head_dim not in HEAD_DIMS:
        raise ValueError(f"head_dim is {head_dim}, not one of {HEAD_DIMS}")
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads do not divide over {num_kv_heads} KV heads")
    check_cache("self_cache", self_cache, num_kv_heads, head_dim)
    check_cache("cross_cache", cross_cache, num_kv_heads, head_dim)
    if not q.dtype == out.dtype == self_cache.dtype == cross_cache.dtype:
        raise ValueError(
            f"q is {q.dtype}, out {out.dtype}, self_cache {self_cache.dtype}, cross_cache {cross_cache.dtype}: not one"
        )
    if q.stride(2) != 1 or out.stride(2) != 1:
        raise ValueError(
            f"q and out have strides {q.stride(2)} and {out.stride(2)} in their last dimension, not 1"
        )
    if num_tokens == 0 or num_requests == 0:
        return

    group = num_heads // num_kv_heads
    if launch is None:
        self_bound = self_block_table.shape[1] * self_cache.shape[2]
        cross_bound = cross_block_table.shape[1] * cross_cache.shape[2]
        if window is not None:
            self_bound = min(self_bound, window + max_query_len)
        self_bound = min(self_bound, max_self_len) if max_self_len is not None else self_bound
        cross_bound = min(cross_bound, max_cross_len) if max_cross_len is not None else cross_bound
        launch = choose_launch_shape(
            max_query_len * group, num_requests, num_kv_heads, q.element_size(),
            self_bound + cross_bound, _num_sms(q.device),
        )  # fmt: skip
    block_n = whole_tiles(launch.block_n, self_cache.shape[2], cross_cache.shape[2])
    splits, overlap = launch.splits, launches_overlap(q.device)
    partial, lse = out, out
    if splits > 1:
        partial = torch.empty(splits, num_tokens, num_heads, head_dim, dtype=torch.float32, device=q.device)
        lse = torch.empty(splits, num_tokens, num_heads, dtype=torch.float32, device=q.device)
    attend_kernel[(splits * launch.row_blocks, num_kv_heads, num_requests)](
        q, out, partial, lse, query_start,
        self_cache, self_block_table, self_seq_lens, cross_cache, cross_block_table, cross_seq_lens,
        num_tokens, splits, UNWINDOWED if window is None else window, scale * math.log2(math.e),
        q.stride(0), q.stride(1), out.stride(0), out.stride(1),
        *self_cache.stride()[:3], self_block_table.stride(0), *cross_cache.stride()[:3], cross_block_table.stride(0),
        NUM_HEADS=num_heads, GROUP=group, HEAD_DIM=head_dim,
        BLOCK_M=launch.block_m, BLOCK_N=block_n, SELF_PAGE=self_cache.shape[2], CROSS_PAGE=cross_cache.shape[2],
        SPLIT=splits > 1, PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        OVERLAP=overlap, num_warps=launch.num_warps, num_stages=launch.num_stages, launch_pdl=overlap,
    )  # fmt: skip
    if splits > 1:
        block_d = join_block_d(splits, head_dim)
        join_kernel[(head_dim // block_d, num_heads, num_tokens)](
            out, partial, lse, query_start, num_tokens, splits, num_requests, out.stride(0), out.stride(1),
            NUM_HEADS=num_heads, HEAD_DIM=head_dim, BLOCK_D=block_d, BLOCK_S=power_of_two(splits),
            OVERLAP=overlap, num_warps=4, launch_pdl=overlap,
        )  # fmt: skip
