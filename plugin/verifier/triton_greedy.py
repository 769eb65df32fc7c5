"""Greedy tokens of a step, and how many drafts they accept, in two launches, which a decode graph may hold.

vLLM samples such a step like any other: without drafts in eight launches, with drafts in ten, whose programs read each
request's temperature and seed across the bus before they look at a logit.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803

import torch
import triton
import triton.language as tl
from vllm.v1.worker.gpu.sample.gumbel import tl_rand32

BLOCK = 4096


@triton.jit
def best_of_block_kernel(p_logits, p_values, p_ids, stride_logits, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """The largest logit of one block of one row and its id; grid `(num_logits, num_blocks)`."""
    i_row = tl.program_id(0).to(tl.int64)
    i_block = tl.program_id(1)
    o = i_block * BLOCK + tl.arange(0, BLOCK)
    b_logit = tl.load(p_logits + i_row * stride_logits + o, mask=o < SIZE, other=float("-inf"))
    top, i_top = tl.max(b_logit.to(tl.float32), 0, return_indices=True)
    i_out = i_row * tl.num_programs(1) + i_block
    tl.store(p_values + i_out, top)
    tl.store(p_ids + i_out, i_block * BLOCK + i_top)


@triton.jit
def accept_kernel(
    p_values, p_ids, p_bounds, p_tokens, p_sampled, p_num_sampled, p_num_rejected,
    p_rates, p_positions, p_slots, p_seeds,
    stride_sampled, NUM_BLOCKS: tl.constexpr, BLOCKS: tl.constexpr, SYNTHETIC: tl.constexpr,
):  # fmt: skip
    """One request, draft by draft up to the first that is not accepted; grid `(num_requests,)`. One without tokens, as
    a graph's padding is, has none sampled and none rejected, whatever its slot."""
    i_request = tl.program_id(0)
    begin = tl.load(p_bounds + i_request).to(tl.int64)
    num_drafts = (tl.load(p_bounds + i_request + 1) - begin).to(tl.int32) - 1
    o = tl.arange(0, BLOCKS)
    seed = tl.load(p_seeds + tl.maximum(tl.load(p_slots + i_request), 0)) if SYNTHETIC else 0
    accepted = 0
    goes_on = True
    for k in range(num_drafts + 1):
        if goes_on:
            i_row = begin + k
            b_value = tl.load(p_values + i_row * NUM_BLOCKS + o, mask=o < NUM_BLOCKS, other=float("-inf"))
            _, i_best = tl.max(b_value, 0, return_indices=True)
            token = tl.load(p_ids + i_row * NUM_BLOCKS + i_best).to(tl.int64)
            goes_on = k < num_drafts
            if goes_on:
                draft = tl.load(p_tokens + i_row + 1).to(tl.int64)
                if SYNTHETIC:
                    u = tl_rand32(seed, tl.load(p_positions + i_row), includes_zero=False)
                    goes_on = (u < tl.load(p_rates + k)) & (draft >= 0)
                else:
                    goes_on = draft == token
                if goes_on:
                    token = draft
                    accepted += 1
            tl.store(p_sampled + i_request * stride_sampled + k, token)
    tl.store(p_num_sampled + i_request, tl.where(num_drafts < 0, 0, accepted + 1))
    tl.store(p_num_rejected + i_request, tl.where(num_drafts < 0, 0, num_drafts - accepted))


def greedy(
    logits: torch.Tensor,
    bounds: torch.Tensor,
    tokens: torch.Tensor,
    width: int,
    synthetic: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Each request's accepted drafts and the token behind them. Of equal logits the first wins.

    Args:
        logits: `[num_tokens, vocab_size]`, one row for every token of the step; last stride 1.
        bounds: `[num_requests + 1]`, where a request's tokens begin.
        tokens: `[num_tokens]` at least: of each request its last token, then its drafts; -1 is never accepted.
        width: columns of the result, at least a request's tokens.
        synthetic: vLLM's synthetic acceptance in the place of the logits' word: rates by position `[width - 1]`,
            positions `[num_tokens]`, each request's slot `[num_requests]`, -1 for one without tokens, seeds by slot.
        out: where the result is put, instead of new tensors.

    Returns:
        Tokens `[num_requests, width]`, int64, of which the first `num_sampled` are set; `num_sampled` and the drafts
        that were not accepted, `[num_requests]`, int32; both 0 for a request without tokens.
    """
    num_logits, size = logits.shape
    num_requests = bounds.shape[0] - 1
    num_blocks = triton.cdiv(size, BLOCK)
    values = logits.new_empty((num_logits, num_blocks), dtype=torch.float32)
    ids = logits.new_empty((num_logits, num_blocks), dtype=torch.int32)
    best_of_block_kernel[(num_logits, num_blocks)](
        logits, values, ids, logits.stride(0), SIZE=size, BLOCK=BLOCK
    )
    sampled, num_sampled, num_rejected = out or (
        logits.new_empty((num_requests, width), dtype=torch.int64),
        logits.new_empty(num_requests, dtype=torch.int32),
        logits.new_empty(num_requests, dtype=torch.int32),
    )
    rates, positions, slots, seeds = synthetic or (values, values, values, values)
    accept_kernel[(num_requests,)](
        values, ids, bounds, tokens, sampled, num_sampled, num_rejected, rates, positions, slots, seeds,
        sampled.stride(0), NUM_BLOCKS=num_blocks, BLOCKS=triton.next_power_of_2(num_blocks),
        SYNTHETIC=synthetic is not None, num_warps=1,
    )  # fmt: skip
    return sampled, num_sampled, num_rejected
