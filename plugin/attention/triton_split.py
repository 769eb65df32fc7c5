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
    n_mine = tl.maximum(
        tl.cdiv(n_tiles, tl.minimum(tl.maximum(tl.cdiv(n_tiles, split_tiles), 1), max_splits)), 1
    )
    n_splits = tl.maximum(tl.cdiv(n_tiles, n_mine), 1)
    return (
        first_token, query_len, self_len, cross_len, first_key, end_key, first_tile, n_self, n_tiles, n_mine, n_splits,
    )  # fmt: skip


@triton.jit
def join_splits(
    p_out, p_partial, p_lse, o_token, o_head, o_d, m_row, n_splits, stride_split, stride_out_token, stride_out_head,
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """Join the splits of some rows, each a token and a head (`o_token`, `o_head`, `m_row`: `[BLOCK_R]`), in the places
    `o_d` `[BLOCK_D]` of the head.

    All splits are loaded at once, without waiting for the weights, and past the L1 cache: other multiprocessors wrote
    them.
    """
    o_split = tl.arange(0, BLOCK_S)
    m_split = (o_split < n_splits)[:, None] & m_row[None, :]
    o_part = o_split.to(tl.int64)[:, None] * stride_split + (o_token * NUM_HEADS + o_head)[None, :]
    b_lse = tl.load(p_lse + o_part, mask=m_split, other=float("-inf"), cache_modifier=".cg")
    b_part = tl.load(
        p_partial + o_part[:, :, None] * HEAD_DIM + o_d[None, None, :],
        mask=m_split[:, :, None], other=0.0, cache_modifier=".cg",
    )  # fmt: skip
    top = tl.max(b_lse, 0)
    b_weight = tl.exp2(b_lse - tl.where(top == float("-inf"), 0.0, top)[None, :])
    total = tl.sum(b_weight, 0)
    b_out = (
        tl.sum(b_part.to(tl.float32) * b_weight[:, :, None], 0) / tl.where(total > 0.0, total, 1.0)[:, None]
    )
    p_row = p_out + o_token * stride_out_token + o_head * stride_out_head
    tl.store(p_row[:, None] + o_d[None, :], b_out.to(p_out.dtype.element_ty), mask=m_row[:, None])


@triton.jit
def join_slice(
    p_out, p_partial, p_lse, first_token, query_len, i_rows, i_kv_head, i_slice, n_splits,
    stride_split, stride_out_token, stride_out_head,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Join the splits of a block of rows and a slice of the values, `BLOCK_E` results at a time, as the program that
    finished last."""
    BLOCK_D: tl.constexpr = min(BLOCK_V, BLOCK_E)  # noqa: N806
    BLOCK_R: tl.constexpr = BLOCK_E // BLOCK_D  # noqa: N806
    n_rows = tl.minimum(query_len * GROUP - i_rows * BLOCK_M, BLOCK_M)
    for first_row in range(0, n_rows, BLOCK_R):
        o_row = first_row + tl.arange(0, BLOCK_R)
        o_query = (i_rows * BLOCK_M + o_row) // GROUP
        o_head = i_kv_head * GROUP + (i_rows * BLOCK_M + o_row) % GROUP
        for first_d in range(0, BLOCK_V, BLOCK_D):
            join_splits(
                p_out, p_partial, p_lse, (first_token + o_query).to(tl.int64), o_head,
                i_slice * BLOCK_V + first_d + tl.arange(0, BLOCK_D), o_row < n_rows, n_splits,
                stride_split, stride_out_token, stride_out_head, NUM_HEADS, HEAD_DIM, BLOCK_S,
            )  # fmt: skip


@triton.jit(do_not_specialize=["num_tokens", "window", "split_tiles", "max_splits"])
def join_kernel(
    p_out, p_partial, p_lse, p_query_start, p_self_lens, p_cross_lens,
    num_tokens, window, split_tiles, max_splits, stride_out_token, stride_out_head,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
    OVERLAP: tl.constexpr, NEXT: tl.constexpr,
):  # fmt: skip
    """Join the splits of BLOCK_R rows (query token and head) and part of head_dim, where there is more than one split.

    Grid `(rows / BLOCK_R * head_dim / BLOCK_D, kv_heads, requests)`; BLOCK_R divides BLOCK_M. With NEXT the launch
    behind this one may begin beside it, else when it ends.
    """
    i_d = tl.program_id(0) % (HEAD_DIM // BLOCK_D)
    i_row = tl.program_id(0) // (HEAD_DIM // BLOCK_D) * BLOCK_R
    i_kv_head = tl.program_id(1)
    i_request = tl.program_id(2)
    first_token, query_len, _, _, _, _, _, _, _, _, n_splits = plan_splits(
        p_query_start, p_self_lens, p_cross_lens, i_request, i_row // BLOCK_M, window, split_tiles, max_splits,
        GROUP, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        if NEXT:
            tl.extra.cuda.gdc_launch_dependents()
    if (i_row // GROUP >= query_len) | (n_splits == 1):
        return
    o_row = i_row + tl.arange(0, BLOCK_R)
    join_splits(
        p_out, p_partial, p_lse, (first_token + o_row // GROUP).to(tl.int64), i_kv_head * GROUP + o_row % GROUP,
        i_d * BLOCK_D + tl.arange(0, BLOCK_D), o_row < query_len * GROUP, n_splits,
        num_tokens.to(tl.int64) * NUM_HEADS, stride_out_token, stride_out_head, NUM_HEADS, HEAD_DIM, BLOCK_S,
    )  # fmt: skip
