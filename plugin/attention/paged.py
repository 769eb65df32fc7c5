"""Which implementation reads and writes the pages: Triton on CUDA, PyTorch on the CPU. Same meaning, same arguments."""

import torch

from plugin.attention import torch_paged
from plugin.attention.torch_paged import Pages


def write_pages(cache: torch.Tensor, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """See `torch_paged.write_pages`."""
    if cache.device.type == "cuda":
        from plugin.attention import triton_kernel

        triton_kernel.write_kv(cache, slots, k, v)
    else:
        torch_paged.write_pages(cache, slots, k, v)


def merged_attention(
    q: torch.Tensor,
    query_start: torch.Tensor,
    max_query_len: int,
    self_pages: Pages,
    cross_pages: Pages,
    window: int | None,
    scale: float,
    out: torch.Tensor,
) -> None:
    """See `torch_paged.merged_attention`; the result goes into `out`, shaped like `q`."""
    if q.device.type == "cuda":
        from plugin.attention import triton_kernel

        triton_kernel.merged_attention(
            q, query_start, max_query_len, self_pages, cross_pages, window, scale, out
        )
    else:
        out.copy_(
            torch_paged.merged_attention(
                q, query_start, max_query_len, self_pages, cross_pages, window, scale
            )
        )
