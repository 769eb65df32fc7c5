"""What a block is drafted from, and where its tokens go: a launch before and one behind the draft, made to be captured.

vLLM prepares a draft in a launch between the verifier's graph and the draft's, from what the step's sampling returned,
in memory of that step. All of it follows from what the runner keeps by request: how many tokens it has computed by now
says what was rejected, and its last token begins the block.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803

import torch
import triton
import triton.language as tl


@triton.jit
def slots_of(p_table, positions, mask, stride_table, PAGE: tl.constexpr):
    """The cache slots of positions of one request; -1 outside `mask`, and in block 0, which belongs to nobody."""
    block = tl.minimum(positions // PAGE, stride_table - 1)
    b_block = tl.load(p_table + block, mask=mask, other=0).to(tl.int64)
    return tl.where(mask & (b_block != 0), b_block * PAGE + positions % PAGE, -1)


@triton.jit(do_not_specialize=["num_context"])
def block_inputs_kernel(
    p_ids, p_positions, p_starts, p_lengths, p_slots, p_context_positions, p_context_slots,
    p_requests, p_computed, p_sampled, p_step_positions, p_step_starts, p_table,
    stride_table, mask_id, num_context, max_model_len,
    QUERY: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """One row of the batch; grid `(num_rows,)`."""
    i_row = tl.program_id(0)
    num_rows = tl.num_programs(0)
    o = tl.arange(0, BLOCK)
    begin = tl.load(p_step_starts + i_row)
    end = tl.load(p_step_starts + i_row + 1)
    request = tl.load(p_requests + i_row)
    is_real = request >= 0
    computed = tl.load(p_computed + request, mask=is_real, other=0).to(tl.int64)
    token = tl.load(p_sampled + request, mask=is_real, other=0).to(tl.int32)
    p_row = p_table + i_row.to(tl.int64) * stride_table
    position = tl.load(p_step_positions + begin, mask=begin < end, other=0)
    for first in range(begin, end, BLOCK):
        o_context = first + o
        m_context = o_context < end
        b_position = position + (o_context - begin)
        m_accepted = m_context & (b_position < computed)
        tl.store(p_context_positions + o_context, tl.where(m_accepted, b_position, 0), mask=m_context)
        b_slot = slots_of(p_row, b_position, m_accepted, stride_table, PAGE)
        tl.store(p_context_slots + o_context, b_slot, mask=m_context)
    m_query = o < QUERY
    o_query = i_row * QUERY + o
    b_position = computed + o
    tl.store(p_ids + o_query, tl.where(o == 0, token, mask_id), mask=m_query)
    tl.store(p_positions + o_query, tl.minimum(b_position, max_model_len - 1), mask=m_query)
    b_slot = slots_of(p_row, b_position, o < tl.where(is_real, QUERY, 0), stride_table, PAGE)
    tl.store(p_slots + o_query, b_slot, mask=m_query)
    length = tl.where(is_real, tl.minimum(computed + QUERY, max_model_len), 0)
    tl.store(p_lengths + i_row, length.to(tl.int32))
    if i_row == num_rows - 1:
        o_row = tl.arange(0, BLOCK_R)
        b_request = tl.load(p_requests + o_row, mask=o_row < num_rows, other=-1)
        num_requests = tl.sum((b_request >= 0).to(tl.int32), 0)
        tl.store(p_starts + o_row, tl.minimum(o_row, num_requests) * QUERY, mask=o_row <= num_rows)
        for first in range(end, num_context, BLOCK):
            tl.store(p_context_slots + first + o, -1, mask=first + o < num_context)


def write_block_inputs(
    ids: torch.Tensor,
    positions: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    slots: torch.Tensor,
    context_positions: torch.Tensor,
    context_slots: torch.Tensor,
    *,
    requests: torch.Tensor,
    computed: torch.Tensor,
    sampled: torch.Tensor,
    step_positions: torch.Tensor,
    step_starts: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    query_len: int,
    mask_id: int,
    max_model_len: int,
) -> None:
    """The inputs of one block a request, and of the context that a verified step leaves behind.

    Slots are -1 of tokens of the step that were rejected, of what stands behind its tokens, and of the block of a row
    without a request, which is an empty query.

    Args:
        ids, positions, slots: written, `[num_rows * query_len]` at least: of the block `[last token, mask, ...]`.
        starts, lengths: written, `[num_rows + 1]` and `[num_rows]` at least: where a row's block begins, and how many
            tokens it attends to, its own included.
        context_positions, context_slots: of the step's tokens; `context_slots` has as many as the draft reads.
        requests: `[num_rows]`, by row its request, -1 for none; those with one come first.
        computed, sampled: by request: tokens computed so far, this step's accepted ones included, and the last token.
        step_positions, step_starts: of the step's tokens, and where a row's begin, `[num_rows + 1]` at least.
        block_table: `[num_rows, blocks]` at least, of the draft's cache.
        block_size: of that cache.
        query_len: tokens of a block.
        mask_id: the mask token.
        max_model_len: bound of positions and lengths.
    """
    num_rows = requests.shape[0]
    block_inputs_kernel[(num_rows,)](
        ids, positions, starts, lengths, slots, context_positions, context_slots,
        requests, computed, sampled, step_positions, step_starts, block_table,
        block_table.stride(0), mask_id, context_slots.shape[0], max_model_len,
        QUERY=query_len, PAGE=block_size, BLOCK=max(triton.next_power_of_2(query_len), 16),
        BLOCK_R=triton.next_power_of_2(starts.shape[0]), num_warps=1,  # one program for graphs of any size
    )  # fmt: skip


@triton.jit
def store_drafts_kernel(
    p_drafted, p_requests, p_out, stride_drafted, stride_out, K: tl.constexpr, BLOCK: tl.constexpr
):
    """One row of the batch; grid `(num_rows,)`."""
    i_row = tl.program_id(0).to(tl.int64)
    request = tl.load(p_requests + i_row)
    if request >= 0:
        o = tl.arange(0, BLOCK)
        b_token = tl.load(p_drafted + i_row * stride_drafted + o, mask=o < K, other=0)
        tl.store(p_out + request * stride_out + o, b_token, mask=o < K)


def store_drafts(drafted: torch.Tensor, requests: torch.Tensor, out: torch.Tensor) -> None:
    """Draft tokens `[num_rows, K]` into `out` `[max_num_requests, K]` by request; rows with request -1 are dropped."""
    num_rows, k = drafted.shape
    store_drafts_kernel[(num_rows,)](
        drafted, requests, out, drafted.stride(0), out.stride(0),
        K=k, BLOCK=triton.next_power_of_2(k), num_warps=1,
    )  # fmt: skip
