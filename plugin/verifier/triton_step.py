"""What a decode step reads of its requests, in one launch: positions, lengths, input ids, slots and block tables; and
the blocks that it adds to those tables.

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
    p_slots, p_bounds, p_logits_bounds, p_computed, p_prefill, p_sampled, p_drafts,
    p_tables, p_strides, p_block_counts, p_block_sizes, p_enabled,
    p_ids, p_positions, p_lens, p_mappings, p_batch_tables,
    stride_drafts, stride_counts, stride_mappings, num_requests, max_requests, max_tokens,
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

    for i in range(begin, end, BLOCK_Q):
        o = i + tl.arange(0, BLOCK_Q)
        m = o < end
        position = computed + o - begin
        block = tl.load(p_own + tl.where(enabled, position // block_size, 0), mask=m, other=0).to(tl.int64)
        mapped = tl.where(enabled, block * block_size + position % block_size, PAD)
        tl.store(p_mapping + o, mapped, mask=m)
        if i_group == 0:
            tl.store(p_positions + o, position.to(tl.int64), mask=m)

    if i_group == 0:
        length = computed + end - begin
        tl.store(p_lens + i_row, length)
        if length > prefill:
            num_logits = tl.load(p_logits_bounds + i_row + 1) - tl.load(p_logits_bounds + i_row)
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
def append_blocks_kernel(p_new, p_tables, p_strides):
    """One block; grid `(num_blocks,)`."""
    p = p_new + tl.program_id(0) * 4
    i_group, slot, place, block = tl.load(p), tl.load(p + 1).to(tl.int64), tl.load(p + 2), tl.load(p + 3)
    tl.store(_table(p_tables, i_group) + slot * tl.load(p_strides + i_group) + place, block)


def append_blocks(new: torch.Tensor, tables: torch.Tensor, strides: torch.Tensor) -> None:
    """Write blocks into the block tables by slot.

    Args:
        new: `[num_blocks, 4]`, int32: a block's cache group, its request's slot, its place in that row, and itself.
        tables, strides: as for `step_inputs`.
    """
    append_blocks_kernel[(new.shape[0],)](new, tables, strides)


def step_inputs(
    slots: torch.Tensor,
    bounds: torch.Tensor,
    logits_bounds: torch.Tensor,
    computed: torch.Tensor,
    prefill: torch.Tensor,
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
    """Write the last five tensors for a batch of requests, each of which brings its last token and its drafts.

    Args:
        slots: `[num_requests]`, int64, each request's slot in what is kept by slot.
        bounds: `[>= num_requests + 1]`, where a request's tokens begin; behind the last, the number of tokens.
        logits_bounds: `[num_requests + 1]`, the same of its tokens from the last sampled one on.
        computed, prefill: by slot, its tokens before this step, and those it was admitted with.
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
        slots, bounds, logits_bounds, computed, prefill, sampled, drafts,
        tables, strides, block_counts, block_sizes, enabled,
        ids, positions, lens, mappings, batch_tables,
        drafts.stride(0), block_counts.stride(0), mappings.stride(0), slots.shape[0], lens.shape[0], mappings.shape[1],
        BLOCK_Q=1 << drafts.shape[1].bit_length(), BLOCK=BLOCK, PAD=PAD_SLOT_ID,
    )  # fmt: skip
