"""The GPU programs of the merged attention: one that attends over pages, one that writes them.

Kept apart from the entry points in `triton_kernel.py` so that what runs on the device reads on its own. Names by role:
`p_` pointer, `i_` program index, `o_` offsets, `m_` mask, `b_` a block's values, `n_` a count, capitals for constants.

A program serves one request, one KV head, one split (`triton_split.py`) and one slice of the values' head_dim. Its rows
are the request's query tokens times the query heads that share the KV head, so that a page is read once for all of
them. Slices need no joining, at the price of scores computed in each of them; and each joins its own splits, so that
the joining is shared out, too. The grid depends only on host numbers and can be captured in a CUDA graph; programs
beyond the splits that a request's lengths call for do nothing.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803

import triton
import triton.language as tl

from plugin.attention.triton_split import join_slice, plan_splits


@triton.jit
def _tile_pages(p_table, i_tile, end_key, BLOCK_N: tl.constexpr, PAGE: tl.constexpr):
    """Page numbers of a tile's keys: one scalar where a page holds whole tiles, else `[BLOCK_N]`.

    Loaded as scalars, since one load for each key would cost more instructions than the attention itself.
    """
    if PAGE >= BLOCK_N:
        b_page = tl.load(p_table + i_tile * BLOCK_N // PAGE, mask=i_tile * BLOCK_N < end_key, other=0)
    else:
        o_n = tl.arange(0, BLOCK_N)
        b_page = tl.zeros([BLOCK_N], tl.int32)
        for i in tl.static_range(BLOCK_N // PAGE):
            i_page = i_tile * (BLOCK_N // PAGE) + i
            page = tl.load(p_table + i_page, mask=i_page * PAGE < end_key, other=0)
            b_page = tl.where(o_n // PAGE == i, page, b_page)
    return b_page


@triton.jit
def _line_pages(
    i_tile, first_tile, n_self, end_key, cross_len, p_self_row, p_cross_row,
    BLOCK_N: tl.constexpr, SELF_PAGE: tl.constexpr, CROSS_PAGE: tl.constexpr,
):  # fmt: skip
    """`_tile_pages` of a tile of the line, whichever cache it lies in."""
    is_self = i_tile < n_self
    self_tile = first_tile + i_tile
    cross_tile = tl.maximum(i_tile - n_self, 0)
    if SELF_PAGE == CROSS_PAGE:
        b_page = _tile_pages(
            tl.where(is_self, p_self_row, p_cross_row), tl.where(is_self, self_tile, cross_tile),
            tl.where(is_self, end_key, cross_len), BLOCK_N, SELF_PAGE,
        )  # fmt: skip
    else:
        b_page = tl.where(
            is_self,
            _tile_pages(p_self_row, self_tile, tl.where(is_self, end_key, 0), BLOCK_N, SELF_PAGE),
            _tile_pages(p_cross_row, cross_tile, tl.where(is_self, 0, cross_len), BLOCK_N, CROSS_PAGE),
        )
    return b_page


@triton.jit(
    do_not_specialize=[
        "num_tokens", "window", "split_tiles", "max_splits", "stride_self_table", "stride_cross_table",
    ]
)  # fmt: skip
def attend_kernel(
    p_q, p_out, p_partial, p_lse, p_done, p_query_start,
    p_self, p_self_table, p_self_lens, p_cross, p_cross_table, p_cross_lens,
    num_tokens, window, split_tiles, max_splits, scale_log2,
    stride_q_token, stride_q_head, stride_out_token, stride_out_head,
    stride_self_block, stride_self_head, stride_self_slot, stride_self_table,
    stride_cross_block, stride_cross_head, stride_cross_slot, stride_cross_table,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SELF_PAGE: tl.constexpr, CROSS_PAGE: tl.constexpr,
    SLICES: tl.constexpr, SPLIT: tl.constexpr, JOIN: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_E: tl.constexpr,
    PRECISION: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Attention of one request, KV head, split and slice.

    Grid `(slices * max_splits * row blocks, kv_heads, requests)`.

    Writes `out` where the request has one split, else `partial` `[max_splits, num_tokens, num_heads, head_dim]` (each
    split's own softmax, normalised) and `lse` `[max_splits, num_tokens, num_heads]` (log2 of its denominator, -inf for
    no key; every slice writes the same). With JOIN the program of a slice of a row block that finishes last writes
    `out` from them; `done` `[requests, kv_heads, row blocks, slices]` counts the finished ones, and is zero before and
    after.
    """
    i_slice = tl.program_id(0) % SLICES  # side by side: they read the same keys
    i_split = tl.program_id(0) // SLICES % max_splits
    i_rows = tl.program_id(0) // SLICES // max_splits
    i_kv_head = tl.program_id(1)
    i_request = tl.program_id(2)

    # Lengths and tables are older than the launch before this one, and are read while it drains.
    first_token, query_len, self_len, cross_len, first_key, end_key, first_tile, n_self, n_tiles, n_mine, n_splits = (
        plan_splits(
            p_query_start, p_self_lens, p_cross_lens, i_request, i_rows, window, split_tiles, max_splits,
            GROUP, BLOCK_M, BLOCK_N,
        )
    )  # fmt: skip
    start = i_split * n_mine
    end = tl.minimum(start + n_mine, n_tiles)
    p_self_row = p_self_table + i_request.to(tl.int64) * stride_self_table
    p_cross_row = p_cross_table + i_request.to(tl.int64) * stride_cross_table
    p_self_head = p_self + i_kv_head.to(tl.int64) * stride_self_head
    p_cross_head = p_cross + i_kv_head.to(tl.int64) * stride_cross_head
    b_page = _line_pages(
        start, first_tile, n_self, end_key, cross_len, p_self_row, p_cross_row, BLOCK_N, SELF_PAGE, CROSS_PAGE
    )
    # Before any return: a launch whose programs all return early would else end before the one before it.
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if (i_rows * BLOCK_M // GROUP >= query_len) | (i_split >= n_splits):
        return

    o_row = i_rows * BLOCK_M + tl.arange(0, BLOCK_M)
    o_query = o_row // GROUP
    m_row = o_query < query_len
    o_head = i_kv_head * GROUP + o_row % GROUP
    o_token = (first_token + o_query).to(tl.int64)
    o_pos = self_len - query_len + o_query
    first_pos = self_len - query_len + i_rows * BLOCK_M // GROUP
    o_d = tl.arange(0, HEAD_DIM)
    o_n = tl.arange(0, BLOCK_N)
    BLOCK_V: tl.constexpr = HEAD_DIM // SLICES  # noqa: N806
    o_v = i_slice * BLOCK_V + tl.arange(0, BLOCK_V)
    p_q_row = p_q + o_token * stride_q_token + o_head * stride_q_head
    b_q = tl.load(p_q_row[:, None] + o_d[None, :], mask=m_row[:, None], other=0.0)
    b_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    b_sum = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    b_acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    # One loop over both caches' tiles: two would drain the pipeline between them. Page numbers are loaded one tile
    # ahead: with them in the same tile Triton's pipeliner would spend its stages on the chain page number -> key
    # instead of on tiles in flight.
    for i_tile in range(start, end):
        is_self = i_tile < n_self
        first_place = tl.where(is_self, first_tile + i_tile, i_tile - n_self) * BLOCK_N
        o_key = first_place + o_n
        # Slots outside the range may be freed or never written: a NaN there must not reach 0 * NaN.
        m_key = (o_key >= tl.where(is_self, first_key, 0)) & (o_key < tl.where(is_self, end_key, cross_len))
        o_block = b_page.to(tl.int64) * tl.where(is_self, stride_self_block, stride_cross_block)
        o_in_page = tl.where(
            is_self, first_place % SELF_PAGE + o_n % SELF_PAGE, first_place % CROSS_PAGE + o_n % CROSS_PAGE
        )
        o_slot = o_block + o_in_page * tl.where(is_self, stride_self_slot, stride_cross_slot)
        p_slot = tl.where(is_self, p_self_head, p_cross_head) + o_slot
        b_page = _line_pages(
            i_tile + 1, first_tile, n_self, end_key, cross_len, p_self_row, p_cross_row, BLOCK_N, SELF_PAGE, CROSS_PAGE,
        )  # fmt: skip
        b_k = tl.load(p_slot[:, None] + o_d[None, :], mask=m_key[:, None], other=0.0)
        b_score = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION) * scale_log2
        # Most tiles hide no key from any row.
        first_seen = tl.where(is_self, self_len - window, 0)
        end_seen = tl.where(is_self, first_pos + 1, cross_len)
        if (first_place < first_seen) | (first_place + BLOCK_N > end_seen):
            o_last = tl.where(is_self, o_pos, cross_len)
            o_before = tl.where(is_self, o_pos - window, -1)
            m_visible = (
                m_key[None, :] & (o_key[None, :] <= o_last[:, None]) & (o_key[None, :] > o_before[:, None])
            )
            b_score = tl.where(m_visible, b_score, float("-inf"))
        b_new_max = tl.maximum(b_max, tl.max(b_score, 1))
        # A row that has seen no key yet keeps -inf as its maximum; -inf - -inf would be NaN.
        b_base = tl.where(b_new_max == float("-inf"), 0.0, b_new_max)
        b_weight = tl.exp2(b_score - b_base[:, None])
        b_decay = tl.exp2(b_max - b_base)
        b_v = tl.load(p_slot[:, None] + (HEAD_DIM + o_v)[None, :], mask=m_key[:, None], other=0.0)
        b_acc = b_acc * b_decay[:, None]
        b_acc = tl.dot(b_weight.to(b_v.dtype), b_v, b_acc, input_precision=PRECISION)
        # Summed over its columns once, behind the loop: a sum in each tile would be one more wait of the warps for each
        # other.
        b_sum = b_sum * b_decay[:, None] + b_weight
        b_max = b_new_max

    b_sum = tl.sum(b_sum, 1)
    b_total = tl.where(b_sum > 0.0, b_sum, 1.0)
    b_out = b_acc / b_total[:, None]
    p_out_row = p_out + o_token * stride_out_token + o_head * stride_out_head
    if SPLIT and n_splits > 1:
        stride_split = num_tokens.to(tl.int64) * NUM_HEADS
        o_token_head = o_token * NUM_HEADS + o_head
        o_mine = i_split * stride_split + o_token_head
        tl.store(p_lse + o_mine, tl.where(b_sum > 0.0, b_max + tl.log2(b_total), float("-inf")), mask=m_row)
        if p_partial.dtype.element_ty == tl.float16:  # of bfloat16 values, whose range is wider
            b_out = tl.where(b_out > 65504.0, 65504.0, tl.where(b_out < -65504.0, -65504.0, b_out))
        tl.store(
            p_partial + o_mine[:, None] * HEAD_DIM + o_v[None, :], b_out.to(p_partial.dtype.element_ty),
            mask=m_row[:, None],
        )  # fmt: skip
        if JOIN:
            # All threads' stores come before the one thread's release, and its acquire before all threads' loads.
            tl.debug_barrier()
            n_blocks = tl.num_programs(0) // SLICES // max_splits
            i_block = (i_request * tl.num_programs(1) + i_kv_head) * n_blocks + i_rows
            p_mine = p_done + i_block * SLICES + i_slice
            if tl.atomic_add(p_mine, 1, sem="acq_rel") == n_splits - 1:
                tl.debug_barrier()
                join_slice(
                    p_out, p_partial, p_lse, first_token, query_len, i_rows, i_kv_head, i_slice, n_splits,
                    stride_split, stride_out_token, stride_out_head,
                    NUM_HEADS, GROUP, HEAD_DIM, BLOCK_M, BLOCK_V, BLOCK_S, BLOCK_E,
                )  # fmt: skip
                tl.store(p_mine, 0)  # for the next launch
    else:
        tl.store(p_out_row[:, None] + o_v[None, :], b_out.to(p_out.dtype.element_ty), mask=m_row[:, None])


@triton.jit
def write_kernel(
    p_cache, p_slots, p_k, p_v, stride_block, stride_head, stride_slot,
    stride_k_token, stride_k_head, stride_v_token, stride_v_head,
    NUM_KV_HEADS: tl.constexpr, BLOCK_H: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Store one token's keys and values of all KV heads in its slot; grid `(num_tokens,)`."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    i_token = tl.program_id(0).to(tl.int64)
    slot = tl.load(p_slots + i_token).to(tl.int64)
    if slot < 0:
        return
    o_head = tl.arange(0, BLOCK_H)[:, None]
    o_d = tl.arange(0, HEAD_DIM)[None, :]
    m_head = o_head < NUM_KV_HEADS
    b_k = tl.load(p_k + i_token * stride_k_token + o_head * stride_k_head + o_d, mask=m_head)
    b_v = tl.load(p_v + i_token * stride_v_token + o_head * stride_v_head + o_d, mask=m_head)
    p_slot = (
        p_cache + (slot // PAGE) * stride_block + (slot % PAGE) * stride_slot + o_head * stride_head + o_d
    )
    tl.store(p_slot, b_k.to(p_cache.dtype.element_ty), mask=m_head)
    tl.store(p_slot + HEAD_DIM, b_v.to(p_cache.dtype.element_ty), mask=m_head)
