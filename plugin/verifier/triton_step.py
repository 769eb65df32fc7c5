"""What a decode step reads of its requests, in one launch: positions, lengths, input ids, slots and block tables; one
before it where the batch is another than the last step's; and single entries of tables by slot.

vLLM has a program for each of these, and each takes longer to be launched than to run. Runs on the CPU too, for tests,
when `TRITON_INTERPRET=1` is set before the first import.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803

import torch
import triton
import triton.language as tl
from vllm.v1.attention.backends.utils import PAD_SLOT_ID

BLOCK = 1024


@triton.jit
def _table(p_addresses, i_group):
    """A group's block tables, of which `p_addresses` has the address."""
    return tl.multiple_of(tl.cast(tl.load(p_addresses + i_group), tl.pointer_type(tl.int32)), 16)


# One program for any number of requests: Triton would compile others for 1 and for multiples of 16 as they come.
@triton.jit(do_not_specialize=["num_requests"])
def step_inputs_kernel(
    p_slots, p_bounds, p_logits_bounds, p_computed, p_prefill, p_prompts, p_sampled, p_drafts,
    p_tables, p_strides, p_block_counts, p_block_sizes, p_enabled,
    p_ids, p_positions, p_lens, p_mappings, p_batch_tables,
    stride_prompts, stride_drafts, stride_counts, stride_mappings, num_requests, max_requests, max_tokens,
    BLOCK_Q: tl.constexpr, BLOCK: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    """One request in one cache group; grid `(num_groups, num_rows + 1)`, where the last row is what lies behind all."""
    i_group, i_row = tl.program_id(0), tl.program_id(1)
    p_mapping = p_mappings + i_group * stride_mappings
    if i_row == tl.num_programs(1) - 1:
        for i in range(tl.load(p_bounds + num_requests), max_tokens, BLOCK):
            o = i + tl.arange(0, BLOCK)
            tl.store(p_mapping + o, PAD, mask=o < max_tokens)
        if i_group == 0:
            for i in range(num_requests, max_requests, BLOCK):
                o = i + tl.arange(0, BLOCK)
                tl.store(p_lens + o, 0, mask=o < max_requests)
        return

    stride = tl.load(p_strides + i_group)
    p_out = _table(p_batch_tables, i_group) + i_row * stride
    if i_row >= num_requests:
        for i in range(0, stride, BLOCK):
            o = i + tl.arange(0, BLOCK)
            tl.store(p_out + o, 0, mask=o < stride)
        return

    # What lies in the host's memory is asked for first.
    slot = tl.load(p_slots + i_row)
    num_blocks = tl.load(p_block_counts + i_group * stride_counts + slot)
    prefill = tl.load(p_prefill + slot)
    computed = tl.load(p_computed + slot)
    begin = tl.load(p_bounds + i_row)
    end = tl.load(p_bounds + i_row + 1)
    block_size = tl.load(p_block_sizes + i_group)
    enabled = tl.load(p_enabled + i_group)
    p_own = _table(p_tables, i_group) + slot * stride
    length = computed + end - begin
    num_logits = tl.load(p_logits_bounds + i_row + 1) - tl.load(p_logits_bounds + i_row)
    num_drafts = tl.where(length > prefill, num_logits - 1, 0)

    for i in range(begin, end, BLOCK_Q):
        o = i + tl.arange(0, BLOCK_Q)
        m = o < end
        position = computed + o - begin
        block = tl.load(p_own + tl.where(enabled, position // block_size, 0), mask=m, other=0).to(tl.int64)
        mapped = tl.where(enabled, block * block_size + position % block_size, PAD)
        tl.store(p_mapping + o, mapped, mask=m)
        if i_group == 0:
            tl.store(p_positions + o, position.to(tl.int64), mask=m)
            if computed < prefill:
                m_prompt = m & (position < prefill) & (o < end - num_drafts)
                p_prompt = p_prompts + slot * stride_prompts + position
                tl.store(p_ids + o, tl.load(p_prompt, mask=m_prompt, other=0), mask=m_prompt)

    if i_group == 0:
        tl.store(p_lens + i_row, length)
        if length > prefill:
            if length - num_logits >= prefill:
                tl.store(p_ids + end - num_logits, tl.load(p_sampled + slot).to(tl.int32))
            o = tl.arange(0, BLOCK_Q)
            m = o < num_logits - 1
            drafts = tl.load(p_drafts + slot * stride_drafts + o, mask=m, other=0)
            tl.store(p_ids + end - num_logits + 1 + o, drafts.to(tl.int32), mask=m)

    for i in range(0, num_blocks, BLOCK):
        o = i + tl.arange(0, BLOCK)
        m = o < num_blocks
        tl.store(p_out + o, tl.load(p_own + o, mask=m, other=0), mask=m)


@triton.jit
def write_entries_kernel(p_entries, p_tables, p_strides):
    """One entry; grid `(num_entries,)`."""
    p = p_entries + tl.program_id(0) * 4
    i_table, slot, place, value = tl.load(p), tl.load(p + 1).to(tl.int64), tl.load(p + 2), tl.load(p + 3)
    tl.store(_table(p_tables, i_table) + slot * tl.load(p_strides + i_table) + place, value)


def write_entries(entries: torch.Tensor, tables: torch.Tensor, strides: torch.Tensor) -> None:
    """Write single entries of tables by slot.

    Args:
        entries: `[num_entries, 4]`, int32: an entry's table, its slot, its place in that row, and itself.
        tables, strides: `[num_tables]`, the addresses of int32 tables by slot, and the lengths of their rows.
    """
    write_entries_kernel[(entries.shape[0],)](entries, tables, strides)


@triton.jit(do_not_specialize=["num_requests", "is_plain"])
def batch_kernel(
    p_given, p_encoder_lens, p_slots, p_bounds, p_expanded, p_offsets, p_lens, p_graph_slots, p_draft_slots,
    num_requests, is_plain, max_requests, BLOCK: tl.constexpr, LONGEST: tl.constexpr,
):  # fmt: skip
    """One program for the batch; grid `(1,)`."""
    o = tl.arange(0, BLOCK)
    m = o < max_requests
    slot = tl.load(p_given + o, mask=m, other=-1).to(tl.int64)
    begin = tl.load(p_given + max_requests + o, mask=o <= max_requests, other=0)
    end = tl.load(p_given + max_requests + 1 + o, mask=m, other=0)
    is_real = o < num_requests
    tl.store(p_slots + o, slot, mask=m)
    tl.store(p_bounds + o, begin, mask=o <= max_requests)
    tl.store(p_lens + o, tl.load(p_encoder_lens + slot, mask=is_real, other=0), mask=m)
    tl.store(p_graph_slots + o, tl.where(is_plain != 0, slot, -1), mask=m)
    tl.store(p_draft_slots + o, slot, mask=m)
    for i in tl.static_range(LONGEST):
        m_token = is_real & (begin + i < end)
        tl.store(p_expanded + begin + i, slot, mask=m_token)
        tl.store(p_offsets + begin + i, i, mask=m_token)


def write_batch(
    given: torch.Tensor,
    encoder_lens: torch.Tensor,
    slots: torch.Tensor,
    bounds: torch.Tensor,
    expanded: torch.Tensor,
    offsets: torch.Tensor,
    lens: torch.Tensor,
    graph_slots: torch.Tensor,
    draft_slots: torch.Tensor,
    num_requests: int,
    is_plain: int,
    longest: int,
) -> None:
    """Write which requests a batch has, and what follows from that, everywhere it is read.

    Args:
        given: `[2 * max_requests + 1]`, int32: each request's slot, -1 behind the batch; then where its tokens begin,
            and behind the batch the number of tokens.
        encoder_lens: by slot, int32, tokens of its prompt.
        slots: `[max_requests]`, int64, of `given`.
        bounds: `[max_requests + 1]`, int32, of `given`.
        expanded, offsets: `[max_tokens]`, int64 and int32: a token's slot, and its place in its request's tokens.
        lens: `[max_requests]`, int32, of `encoder_lens`; 0 behind the batch.
        graph_slots: `[max_requests]`, int64, as `slots` if the batch is plain, else -1.
        draft_slots: `[max_requests]`, int64, as `slots`.
        num_requests: of the batch.
        is_plain: 1 or 0, see `graph_slots`.
        longest: tokens that a request may have.
    """
    max_requests = slots.shape[0]
    batch_kernel[(1,)](
        given, encoder_lens, slots, bounds, expanded, offsets, lens, graph_slots, draft_slots,
        num_requests, is_plain, max_requests,
        BLOCK=triton.next_power_of_2(max_requests + 1), LONGEST=longest, num_warps=1,
    )  # fmt: skip


def step_inputs(
    slots: torch.Tensor,
    bounds: torch.Tensor,
    logits_bounds: torch.Tensor,
    computed: torch.Tensor,
    prefill: torch.Tensor,
    prompts: torch.Tensor,
    sampled: torch.Tensor,
    drafts: torch.Tensor,
    tables: torch.Tensor,
    strides: torch.Tensor,
    block_counts: torch.Tensor,
    block_sizes: torch.Tensor,
    enabled: torch.Tensor,
    ids: torch.Tensor,
    positions: torch.Tensor,
    lens: torch.Tensor,
    mappings: torch.Tensor,
    batch_tables: torch.Tensor,
    num_rows: int,
) -> None:
    """Write the last five tensors for a batch of requests, each of which brings its last token and its drafts, or
    tokens that it was admitted with.

    Args:
        slots: `[num_requests]`, int64, each request's slot in what is kept by slot.
        bounds: `[>= num_requests + 1]`, where a request's tokens begin; behind the last, the number of tokens.
        logits_bounds: `[num_requests + 1]`, the same of its tokens from the last sampled one on.
        computed, prefill: by slot, its tokens before this step, and the number of those it was admitted with.
        prompts: `[max_requests, max_model_len]` by slot, int32: those tokens.
        sampled: `[max_requests, 1]` by slot, its last token.
        drafts: `[max_requests, K]` by slot.
        tables, strides: `[num_groups]`, by cache group the address of its block tables by slot, and a row's length.
        block_counts: `[num_groups, max_requests]`, blocks in those rows.
        block_sizes, enabled: `[num_groups]`, tokens of a block; whether decoder tokens have slots there.
        ids, positions: `[max_tokens]`.
        lens: `[max_requests]`, tokens with this step's; 0 behind the batch.
        mappings: `[num_groups, max_tokens]`, where in the cache a token goes; `PAD_SLOT_ID` behind the batch.
        batch_tables: `[num_groups]`, the address of block tables by row of the batch, as wide as those by slot.
        num_rows: rows of a graph, the batch's or more; those behind the batch become zero.
    """
    step_inputs_kernel[(tables.shape[0], num_rows + 1)](
        slots, bounds, logits_bounds, computed, prefill, prompts, sampled, drafts,
        tables, strides, block_counts, block_sizes, enabled,
        ids, positions, lens, mappings, batch_tables,
        prompts.stride(0), drafts.stride(0), block_counts.stride(0), mappings.stride(0),
        slots.shape[0], lens.shape[0], mappings.shape[1],
        BLOCK_Q=1 << drafts.shape[1].bit_length(), BLOCK=BLOCK, PAD=PAD_SLOT_ID,
    )  # fmt: skip
