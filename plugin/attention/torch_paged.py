"""The merged attention in plain PyTorch over vLLM's paged caches: the CPU's implementation, and the GPU kernel's peer.

A cache is `[num_blocks, num_kv_heads, block_size, 2 * head_dim]`, keys in the first half of the last dimension and
values in the second; block tables are `[num_requests, max_blocks]`.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

APART_KEYS = 1024
"""Padding, in keys of all requests, above which long requests are attended apart from short ones on the CPU: about what
another call costs for two heads of 32 (two cores), and less than that for larger ones.
"""


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

    def of(self, requests: list[int]) -> "Pages":
        """Those of some requests, bounded by the longest of them; on the CPU."""
        seq_lens = self.seq_lens[requests]
        return Pages(self.cache, self.block_table[requests], seq_lens, int(seq_lens.max()))


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


def gather_pages(pages: Pages) -> torch.Tensor:
    """Keys and values of every request, `[num_requests, num_kv_heads, padded_len, 2 * head_dim]`."""
    block_size = pages.cache.shape[2]
    num_blocks = -(-pages.max_len // block_size)
    # Heads first, so that a request's blocks lie one behind the other in the one copy that this makes.
    kv = pages.cache.transpose(0, 1)[:, pages.block_table[:, :num_blocks].long()]
    return kv.flatten(2, 3).transpose(0, 1)[:, :, : pages.max_len]


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

    On the CPU a request that is much longer than others does not make them as long as itself.

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
    groups = _apart(self_pages, cross_pages) if q.device.type == "cpu" else []
    if not groups:
        return _padded(q, query_start, max_query_len, self_pages, cross_pages, window, scale)
    out, starts = torch.empty_like(q), query_start.tolist()
    for requests in groups:
        lens = [starts[i + 1] - starts[i] for i in requests]
        tokens = torch.cat([torch.arange(starts[i], starts[i + 1]) for i in requests])
        begin = torch.tensor([0, *lens]).cumsum(0)
        pages = self_pages.of(requests), cross_pages.of(requests)
        out[tokens] = _padded(q[tokens], begin, max(lens), *pages, window, scale)
    return out


def _apart(self_pages: Pages, cross_pages: Pages) -> list[list[int]]:
    """The short and the long requests where it pays to attend to them apart, else nothing."""
    keys = (self_pages.seq_lens + cross_pages.seq_lens).tolist()
    longest = max(keys)
    short = [i for i, n in enumerate(keys) if 2 * n <= longest]
    if not short or len(short) * (longest - max(keys[i] for i in short)) < APART_KEYS:
        return []
    return [short, [i for i in range(len(keys)) if i not in short]]


def _padded(
    q: torch.Tensor,
    query_start: torch.Tensor,
    max_query_len: int,
    self_pages: Pages,
    cross_pages: Pages,
    window: int | None,
    scale: float,
) -> torch.Tensor:
    """`merged_attention` with the keys of all requests padded to the longest one's."""
    num_tokens, device = q.shape[0], q.device
    query_lens = query_start[1:] - query_start[:-1]
    num_requests = query_lens.shape[0]
    offsets = torch.arange(max_query_len, device=device)
    uniform = num_tokens == num_requests * max_query_len
    if uniform:
        padded_q = q.view(num_requests, max_query_len, *q.shape[1:])
    else:
        padded_q = q[(query_start[:-1, None] + offsets).clamp(max=num_tokens - 1)]

    self_kv, cross_kv = gather_pages(self_pages), gather_pages(cross_pages)
    query_pos = (self_pages.seq_lens - query_lens)[:, None] + offsets
    key_pos = torch.arange(self_kv.shape[2], device=device)
    visible = (key_pos <= query_pos[:, :, None]) & (key_pos < self_pages.seq_lens[:, None, None])
    if window is not None:
        visible &= key_pos > query_pos[:, :, None] - window
    in_encoder = torch.arange(cross_kv.shape[2], device=device) < cross_pages.seq_lens[:, None]
    mask = torch.cat((visible, in_encoder[:, None].expand(-1, max_query_len, -1)), dim=-1)

    kv = torch.cat((self_kv, cross_kv), dim=2)
    # Pages beyond a request's length are another request's or never written: a NaN there must not reach 0 * NaN.
    unseen = ~mask.any(dim=1)
    if device.type != "cpu" or bool(unseen.any()):
        kv.masked_fill_(unseen[:, None, :, None], 0)
    k, v = kv.chunk(2, dim=-1)
    out = F.scaled_dot_product_attention(
        padded_q.transpose(1, 2), k, v, attn_mask=mask[:, None], scale=scale, enable_gqa=True
    ).transpose(1, 2)
    if uniform:
        return out.reshape(num_tokens, *q.shape[1:])
    token = torch.arange(num_tokens, device=device)
    request = torch.searchsorted(query_start[1:].contiguous(), token, right=True)
    return out[request, token - query_start[request]]
