"""The custom ops that the decoder and the drafts call on CUDA, from the projection to the attention's output.

A process of its own runs this under Triton's interpreter: norm, rotation and page write are the GPU's program, the
attention is `torch_paged`'s. The step's context, which vLLM's runner would set, is put in place by hand.
"""

import json
import sys
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from plugin.attention import merged
from plugin.attention.paged_batch import BatchSpec, PagedBatch, make_batch
from plugin.attention.torch_paged import merged_attention, write_pages
from plugin.drafts import block_attention
from tests.plugin.attention.kernel_cases import relative_error

HEADS, KV_HEADS, DIM, WINDOW, SCALE, EPS, PADDING = 4, 2, 32, 18, 0.3, 1e-6, 2
QUERY_LENS = (4, 1, 4)


def metadata(batch: PagedBatch, pages: Any) -> SimpleNamespace:
    return SimpleNamespace(
        num_actual_tokens=sum(QUERY_LENS), max_query_len=4, query_start_loc=batch.query_start, seq_lens=pages.seq_lens,
        max_seq_len=pages.max_len, block_table=pages.block_table, no_keys=torch.zeros(3, dtype=torch.int32),
    )  # fmt: skip


def rotated_norm(x: torch.Tensor, weight: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def op_error(draft: bool) -> float:
    """Output rows of the step, and zeros behind them, against the same step by step."""
    spec = BatchSpec(
        QUERY_LENS, (20, 1, 40), (33, 5, 9), HEADS, KV_HEADS, DIM, dtype=torch.float32, padding=PADDING
    )
    batch = make_batch(spec, "cpu")
    n, total = sum(QUERY_LENS), sum(QUERY_LENS) + PADDING
    qkv = torch.randn(total, (HEADS + 2 * KV_HEADS) * DIM)
    q_weight, k_weight = torch.randn(2, DIM)
    cos_sin, positions = torch.randn(50, DIM), torch.randint(0, 50, (total,))
    mine, theirs = batch.self_pages, batch.cross_pages
    pages = theirs if draft else mine
    slots = torch.cat([
        torch.tensor([int(pages.block_table[r, i // 16]) * 16 + i % 16 for i in range(int(length) - q, int(length))])
        for r, (q, length) in enumerate(zip(QUERY_LENS, pages.seq_lens, strict=True))
    ])  # fmt: skip
    slots = torch.cat((slots, torch.full((PADDING,), -1)))

    # The obvious way, into copies of the pages.
    offset = 0.0 if draft else 1.0
    cos, sin = cos_sin[positions][:, None].chunk(2, dim=-1)
    q, k, v = qkv.unflatten(-1, (-1, DIM)).split([HEADS, KV_HEADS, KV_HEADS], dim=1)
    cache = pages.cache.clone()
    write_pages(cache, slots, rotated_norm(k, offset + k_weight, cos, sin), v)
    written = SimpleNamespace(
        **{f: getattr(pages, f) for f in ("block_table", "seq_lens", "max_len")}, cache=cache
    )
    empty = SimpleNamespace(cache=cache, block_table=pages.block_table, seq_lens=torch.zeros(3), max_len=0)
    first, second = (empty, written) if draft else (written, theirs)
    want = torch.zeros(total, HEADS, DIM)
    q = rotated_norm(q, offset + q_weight, cos, sin)[:n]
    want[:n] = merged_attention(q, batch.query_start, 4, first, second, None if draft else WINDOW, SCALE)

    impl = block_attention.BlockImpl(HEADS, DIM, SCALE, KV_HEADS)
    contexts = {
        "self": (metadata(batch, mine), None, mine.cache, slots),
        "cross": (metadata(batch, theirs), SimpleNamespace(impl=impl), theirs.cache, slots),
    }
    out = torch.full((total, HEADS, DIM), 7.0)
    step = SimpleNamespace(attn_metadata={})
    with mock.patch.multiple(
        block_attention if draft else merged,
        get_attention_context=contexts.__getitem__, get_forward_context=lambda: step,
    ):  # fmt: skip
        if draft:
            block_attention.block_attention_op(qkv, positions, cos_sin, q_weight, k_weight, EPS, out, "cross")
            out[n:] = 0.0  # vLLM leaves the rows behind a draft's step to chance
        else:
            merged.projected_attention_op(
                qkv, positions, cos_sin, q_weight, k_weight, EPS, out, "self", "cross", SCALE, WINDOW
            )
    return relative_error(out, want)


def main() -> None:
    """Print one JSON object of errors."""
    json.dump({"decoder": op_error(False), "draft": op_error(True)}, sys.stdout)


if __name__ == "__main__":
    main()
