"""Greedy drafting of a row in one launch: the bias added, the largest logit found, its id mapped to the verifier's.

torch's argmax gives a row of 32 000 logits to one block of threads that reads it slowly (9 us on an H200, of 430 for a
whole draft), and the sum before it and the mapping behind it are five launches more. DSpark pays all of it for each
slot.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803

import torch
import triton
import triton.language as tl

MAX_BLOCK = 32_768


@triton.jit
def pick_kernel(
    p_logits, p_bias, p_d2t, p_out, stride_logits, stride_bias,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, BIASED: tl.constexpr, MAPPED: tl.constexpr,
):  # fmt: skip
    """One row; grid `(num_rows,)`. Of equal logits the first wins, as in torch's argmax."""
    i_row = tl.program_id(0).to(tl.int64)
    dtype = p_logits.dtype.element_ty
    best = float("-inf")
    found = 0
    for first in range(0, SIZE, BLOCK):
        o = first + tl.arange(0, BLOCK)
        b_logit = tl.load(p_logits + i_row * stride_logits + o, mask=o < SIZE, other=float("-inf")).to(
            tl.float32
        )
        if BIASED:
            b_bias = tl.load(p_bias + i_row * stride_bias + o, mask=o < SIZE, other=0.0).to(tl.float32)
            b_logit = (b_logit + b_bias).to(dtype).to(tl.float32)
        top, i_top = tl.max(b_logit, 0, return_indices=True)
        found = tl.where(top > best, first + i_top, found)
        best = tl.maximum(top, best)
    target = tl.cast(found, tl.int64)
    if MAPPED:
        target += tl.load(p_d2t + target)
    tl.store(p_out + i_row, target)


def pick(logits: torch.Tensor, bias: torch.Tensor | None, d2t: torch.Tensor | None) -> torch.Tensor:
    """`i + d2t[i]` for `i = argmax(logits + bias)`, `[num_rows]`, int64.

    Args:
        logits, bias: `[num_rows, draft_vocab_size]`, last stride 1; no bias: None.
        d2t: `[draft_vocab_size]`, int64; None for the verifier's own vocabulary.
    """
    rows, size = logits.shape
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    pick_kernel[(rows,)](
        logits, logits if bias is None else bias, out if d2t is None else d2t, out,
        logits.stride(0), 0 if bias is None else bias.stride(0),
        SIZE=size, BLOCK=min(triton.next_power_of_2(size), MAX_BLOCK), BIASED=bias is not None, MAPPED=d2t is not None,
        num_warps=16 if size > 4096 else 4,
    )  # fmt: skip
    return out
