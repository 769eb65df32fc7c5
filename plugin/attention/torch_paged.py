"""The merged attention in plain PyTorch over vLLM's paged caches: the CPU's implementation, and the GPU kernel's peer.

A cache is `[num_blocks, num_kv_heads, block_size, 2 * head_dim]`, keys in the first half of the last dimension and
values in the second; block tables are `[num_requests, max_blocks]`.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class Pages:
    """One layer's cache and where each request's tokens lie in it.

    Attributes:
        cache: `[num_blocks, num_kv_heads, block_size, 2 * head_dim]`.
        block_table: `[num_requests, max_blocks]`, int.
        seq_lens: `[num_requests]`, tokens of each request in this cache, those of this step included.
        max_len: upper bound of `seq_lens`, on the host.
    """

    cache: torch.Tensor
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    max_len: int


def write_pages(cache: torch.Tensor, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Store k and v, each `[num_tokens, num_kv_heads, head_dim]`, at `slots` `[num_tokens]` (block * block_size +
    offset).

    Slots below zero are padding and are dropped.
    """
    block_size = cache.shape[2]
    keep = slots >= 0
    if slots.device.type == "cpu" and bool(keep.all()):
        cache[slots // block_size, :, slots % block_size] = torch.cat((k, v), dim=-1)
        return
    slots, kv = slots[keep], torch.cat((k, v), dim=-1)[keep]
    cache[slots // block_size, :, slots % block_size] = kv


def gather_pages(pages: Pages) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of every request, each `[num_requests, num_kv_heads, padded_len, head_dim]`."""
    block_size = pages.cache.shape[2]
    num_blocks = -(-pages.max_len // block_size)
    kv = pages.cache[pages.block_table[:, :num_blocks].long()]
    kv = kv.transpose(1, 2).flatten(2, 3)[:, :, : pages.max_len]
    k, v = kv.chunk(2, dim=-1)
    return k, v


def merged_attention(
    q: torch.Tensor,
    query_start: torch.Tensor,
    max_query_len: int,
    self_pages: Pages,
    cross_pages: Pages,
    window: int | None,
    scale: float,
) -> torch.Tensor:
    """One softmax over the causal (and windowed) self keys and all encoder keys of each request.

    Args:
        q: `[num_tokens, num_heads, head_dim]`, requests one after another.
        query_start: `[num_requests + 1]`, first query token of each request.
        max_query_len: longest query of a request, on the host.
        window: None, or how many most recent self keys (the query's own included) a query sees. Encoder keys are never
            windowed.
        scale: factor on the scores.

    Returns:
        `[num_tokens, num_heads, head_dim]`.
    """
    num_tokens, device = q.shape[0], q.device
    query_lens = query_start[1:] - query_start[:-1]
    num_requests = query_lens.shape[0]
    offsets = torch.arange(max_query_len, device=device)
    uniform = num_tokens == num_requests * max_query_len
    if uniform:
        padded_q = q.view(num_requests, max_query_len, *q.shape[1:])
    else:
        padded_q = q[(query_start[:-1, None] + offsets).clamp(max=num_tokens - 1)]

    self_k, self_v = gather_pages(self_pages)
    cross_k, cross_v = gather_pages(cross_pages)
    query_pos = (self_pages.seq_lens - query_lens)[:, None] + offsets
    key_pos = torch.arange(self_k.shape[2], device=device)
    visible = (key_pos <= query_pos[:, :, None]) & (key_pos < self_pages.seq_lens[:, None, None])
    if window is not None:
        visible &= key_pos > query_pos[:, :, None] - window
    in_encoder = torch.arange(cross_k.shape[2], device=device) < cross_pages.seq_lens[:, None]
    mask = torch.cat((visible, in_encoder[:, None].expand(-1, max_query_len, -1)), dim=-1)

    k = torch.cat((self_k, cross_k), dim=2)
    v = torch.cat((self_v, cross_v), dim=2)
    # Pages beyond a request's length are another request's or never written: a NaN there must not reach 0 * NaN.
    unseen = ~mask.any(dim=1)[:, None, :, None]
    k, v = k.masked_fill(unseen, 0), v.masked_fill(unseen, 0)
    out = F.scaled_dot_product_attention(
        padded_q.transpose(1, 2), k, v, attn_mask=mask[:, None], scale=scale, enable_gqa=True
    ).transpose(1, 2)
    if uniform:
        return out.reshape(num_tokens, *q.shape[1:])
    token = torch.arange(num_tokens, device=device)
    request = torch.searchsorted(query_start[1:].contiguous(), token, right=True)
    return out[request, token - query_start[request]]
