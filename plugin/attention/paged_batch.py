"""A random batch in paged caches, for the kernel's tests and its benchmark.

Every page slot that holds no token of the batch is NaN and pages are shuffled, so that reading a wrong slot shows.
"""

from dataclasses import dataclass

import torch

from plugin.attention.naive import merged_attention_naive
from plugin.attention.torch_paged import Pages, gather_pages

LAYOUTS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
"""vLLM's physical orders of layers, blocks, heads, slots and content; LBNHC is its default."""

NUM_LAYERS = 2


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """Lengths and shapes of a batch.

    Attributes:
        query_lens, self_lens, cross_lens: per request, the step's query tokens, the self keys (these tokens' own
            included) and the encoder keys. A query length of 0 is a padded request.
        self_page, cross_page: tokens of a page.
        layout: one of `LAYOUTS`.
        padding: tokens behind the last request's.
        table_tokens: tokens that a row of the block tables has room for, at least.
    """

    query_lens: tuple[int, ...]
    self_lens: tuple[int, ...]
    cross_lens: tuple[int, ...]
    num_heads: int = 4
    num_kv_heads: int = 1
    head_dim: int = 256
    self_page: int = 16
    cross_page: int = 16
    dtype: torch.dtype = torch.bfloat16
    layout: str = "LBNHC"
    padding: int = 0
    table_tokens: int = 0


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """Inputs of one merged attention; `q` `[num_tokens, num_heads, head_dim]`, `query_start` `[num_requests + 1]`."""

    spec: BatchSpec
    q: torch.Tensor
    query_start: torch.Tensor
    self_pages: Pages
    cross_pages: Pages


def allocate_cache(
    num_blocks: int, num_kv_heads: int, page: int, head_dim: int, layout: str, dtype: torch.dtype, device: str
) -> torch.Tensor:
    """The last layer's `[num_blocks, num_kv_heads, page, 2 * head_dim]` view of a random cache in a physical layout."""
    sizes = {"L": NUM_LAYERS, "B": num_blocks, "H": num_kv_heads, "N": page, "C": 2 * head_dim}
    buffer = torch.randn([sizes[axis] for axis in layout], dtype=dtype, device=device)
    return buffer.permute([layout.index(axis) for axis in "LBHNC"])[NUM_LAYERS - 1]


def _pages(lens: tuple[int, ...], page: int, spec: BatchSpec, device: str) -> Pages:
    blocks = [-(-n // page) for n in lens]
    table = torch.zeros(len(lens), max(*blocks, -(-spec.table_tokens // page), 1) + 1, dtype=torch.int32)
    order = torch.randperm(sum(blocks) + 2).tolist()
    cache = allocate_cache(
        len(order), spec.num_kv_heads, page, spec.head_dim, spec.layout, spec.dtype, device
    )
    used = torch.zeros(len(order), page, dtype=torch.bool)
    for r, length in enumerate(lens):
        mine = torch.tensor([order.pop() for _ in range(blocks[r])], dtype=torch.long)
        table[r, : blocks[r]] = mine
        slot = torch.arange(length)
        used[mine[slot // page], slot % page] = True
    cache.masked_fill_(~used.to(device)[:, None, :, None], float("nan"))
    return Pages(cache, table.to(device), torch.tensor(lens, dtype=torch.int32, device=device), max(*lens, 1))


def make_batch(spec: BatchSpec, device: str, seed: int = 0) -> PagedBatch:
    """Random inputs of `spec`, the same for the same seed and device."""
    torch.manual_seed(seed)
    num_tokens = sum(spec.query_lens) + spec.padding
    q = torch.randn(num_tokens, spec.num_heads, spec.head_dim, dtype=spec.dtype, device=device)
    start = torch.tensor([0, *spec.query_lens]).cumsum(0).to(device=device, dtype=torch.int32)
    self_pages = _pages(spec.self_lens, spec.self_page, spec, device)
    return PagedBatch(spec, q, start, self_pages, _pages(spec.cross_lens, spec.cross_page, spec, device))


def naive_reference(batch: PagedBatch, window: int | None, scale: float, requests: list[int]) -> torch.Tensor:
    """The attention of some requests of a small batch by `naive.py`, in float64 on the CPU."""

    def sequences(pages: Pages) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        k, v = (x.cpu().transpose(1, 2) for x in gather_pages(pages).chunk(2, dim=-1))
        lens = pages.seq_lens.tolist()
        return [k[r, : lens[r]] for r in requests], [v[r, : lens[r]] for r in requests]

    q = batch.q.cpu().double()
    start = batch.query_start.tolist()
    rows = torch.cat([q[start[r] : start[r + 1]] for r in requests])
    self_k, self_v = sequences(batch.self_pages)
    cross_k, cross_v = sequences(batch.cross_pages)
    query_lens = [batch.spec.query_lens[r] for r in requests]
    return merged_attention_naive(rows, self_k, self_v, cross_k, cross_v, query_lens, window, scale)
