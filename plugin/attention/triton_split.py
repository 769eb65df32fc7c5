"""How the merged attention's programs share out a request's keys, and how their results are joined (flash-decoding).

The visible keys of a block of rows form one line of tiles: first the self tiles from the oldest visible one on, then
the encoder's. Into how many splits the line is cut is computed on the device from the request's own lengths, so that a
captured graph serves short requests as it serves long ones; the launch only bounds the number. Every program of a row
block computes the same plan. Names by role as in `triton_attend.py`.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803

import triton
import triton.language as tl


@triton.jit
def plan_splits(
    p_query_start, p_self_lens, p_cross_lens, i_request, i_rows, window, split_tiles, max_splits,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Of one request and row block: its first token, query, self and encoder lengths; the first and the end key that
    its rows see; the first tile, the self tiles, all tiles, tiles of a split, and splits (none of them empty, unless
    there is no key at all)."""
    first_token = tl.load(p_query_start + i_request)
    query_len = tl.load(p_query_start + i_request + 1) - first_token
    self_len = tl.load(p_self_lens + i_request)
    cross_len = tl.load(p_cross_lens + i_request)
    first_query = i_rows * BLOCK_M // GROUP
    last_query = tl.minimum(query_len - 1, ((i_rows + 1) * BLOCK_M - 1) // GROUP)
    first_key = tl.maximum(self_len - query_len + first_query - window + 1, 0)
    end_key = tl.minimum(self_len - query_len + last_query + 1, self_len)
    first_tile = first_key // BLOCK_N
    n_self = tl.maximum(tl.cdiv(end_key, BLOCK_N) - first_tile, 0)
    n_tiles = n_self + tl.cdiv(cross_len, BLOCK_N)
    n_mine = tl.maximum(tl.cdiv(n_tiles, tl.minimum(tl.maximum(n_tiles // split_tiles, 1), max_splits)), 1)
    n_splits = tl.maximum(tl.cdiv(n_tiles, n_mine), 1)
    return (
        first_token, query_len, self_len, cross_len, first_key, end_key, first_tile, n_self, n_tiles, n_mine, n_splits,
    )  # fmt: skip


@triton.jit
def join_rows(
    p_out_row, p_partial, p_lse, o_token_head, m_row, n_splits, stride_split,
    BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """Join the splits of a block of rows, as the program that finished last; `p_out_row` `[BLOCK_M]` are the rows.

    Loads go past the L1 cache: other multiprocessors wrote these values.
    """
    o_split = tl.arange(0, BLOCK_S)
    m_split = m_row[:, None] & (o_split < n_splits)[None, :]
    b_lse = tl.load(
        p_lse + o_split[None, :] * stride_split + o_token_head[:, None],
        mask=m_split, other=float("-inf"), cache_modifier=".cg",
    )  # fmt: skip
    top = tl.max(b_lse, 1)
    b_weight = tl.exp2(b_lse - tl.where(top == float("-inf"), 0.0, top)[:, None])
    total = tl.sum(b_weight, 1)
    b_weight = b_weight / tl.where(total > 0.0, total, 1.0)[:, None]
    for first_d in range(0, HEAD_DIM, BLOCK_D):
        o_d = first_d + tl.arange(0, BLOCK_D)
        p_part = p_partial + o_token_head[:, None] * HEAD_DIM + o_d[None, :]
        b_out = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        for i_split in range(n_splits):
            b_mine = tl.sum(tl.where((o_split == i_split)[None, :], b_weight, 0.0), 1)
            b_part = tl.load(p_part, mask=m_row[:, None], other=0.0, cache_modifier=".cg")
            b_out += b_part * b_mine[:, None]
            p_part += stride_split * HEAD_DIM
        b_out = b_out.to(p_out_row.dtype.element_ty)
        tl.store(p_out_row[:, None] + o_d[None, :], b_out, mask=m_row[:, None])


@triton.jit(do_not_specialize=["num_tokens", "window", "split_tiles", "max_splits"])
def join_kernel(
    p_out, p_partial, p_lse, p_query_start, p_self_lens, p_cross_lens,
    num_tokens, window, split_tiles, max_splits, stride_out_token, stride_out_head,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Join the splits of one row (query token and head) and part of head_dim, where there is more than one split.

    Grid `(rows * head_dim / BLOCK_D, kv_heads, requests)`.
    """
    i_d = tl.program_id(0) % (HEAD_DIM // BLOCK_D)
    i_row = tl.program_id(0) // (HEAD_DIM // BLOCK_D)
    i_kv_head = tl.program_id(1)
    i_request = tl.program_id(2)
    first_token, query_len, _, _, _, _, _, _, _, _, n_splits = plan_splits(
        p_query_start, p_self_lens, p_cross_lens, i_request, i_row // BLOCK_M, window, split_tiles, max_splits,
        GROUP, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if (i_row // GROUP >= query_len) | (n_splits == 1):
        return
    i_token = (first_token + i_row // GROUP).to(tl.int64)
    i_head = i_kv_head * GROUP + i_row % GROUP
    o_split = tl.arange(0, BLOCK_S)
    o_d = i_d * BLOCK_D + tl.arange(0, BLOCK_D)
    o_row = (o_split * num_tokens.to(tl.int64) + i_token) * NUM_HEADS + i_head
    m_split = o_split < n_splits
    b_lse = tl.load(p_lse + o_row, mask=m_split, other=float("-inf"))
    # Loaded without waiting for the weights.
    b_part = tl.load(p_partial + o_row[:, None] * HEAD_DIM + o_d[None, :], mask=m_split[:, None], other=0.0)
    top = tl.max(b_lse, 0)
    b_weight = tl.exp2(b_lse - tl.where(top == float("-inf"), 0.0, top))
    total = tl.sum(b_weight, 0)
    b_out = tl.sum(b_part * b_weight[:, None], 0) / tl.where(total > 0.0, total, 1.0)
    p_row = p_out + i_token * stride_out_token + i_head * stride_out_head
    tl.store(p_row + o_d, b_out.to(p_out.dtype.element_ty))
