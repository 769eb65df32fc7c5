"""The GPU program of `residual_norm.py` and of the encoder's residuals, and its launch.

Runs on the CPU too, for tests, when `TRITON_INTERPRET=1` is set before the first import.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803

import torch
import triton
import triton.language as tl

from plugin.attention.triton_kernel import launches_overlap
from plugin.projection.triton_parts import sum_of_parts


@triton.jit
def norm_add_norm_kernel(
    p_x, p_residual, p_weight, p_next_weight, p_out, p_sum, p_branch, eps, offset,
    stride_part, stride_x, stride_residual, WIDTH: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
    NORMED: tl.constexpr, ROUNDED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One token; grid `(num_tokens,)`. x is in SPLITS parts, or, with 0, a whole."""
    o = tl.arange(0, BLOCK)
    mask = o < WIDTH
    b_next_weight = tl.load(p_next_weight + o, mask=mask, other=0.0).to(tl.float32)
    if NORMED:
        b_weight = tl.load(p_weight + o, mask=mask, other=0.0).to(tl.float32)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    i_token = tl.program_id(0).to(tl.int64)
    dtype = p_out.dtype.element_ty
    p_x += i_token * stride_x + o
    if SPLITS > 0:
        b_branch = sum_of_parts(p_x, stride_part, mask, SPLITS).to(dtype)
    else:
        b_branch = tl.load(p_x, mask=mask, other=0.0)
    b_residual = tl.load(p_residual + i_token * stride_residual + o, mask=mask, other=0.0).to(tl.float32)
    o_out = i_token * WIDTH + o
    if NORMED:
        b_x = b_branch.to(tl.float32)
        b_branch = (b_x * tl.rsqrt(tl.sum(b_x * b_x, 0) / WIDTH + eps) * (b_weight + offset)).to(dtype)
        tl.store(p_branch + o_out, b_branch, mask=mask)
    b_sum = b_branch.to(tl.float32) + b_residual
    if ROUNDED:
        b_sum = b_sum.to(dtype).to(tl.float32)
    b_out = b_sum * tl.rsqrt(tl.sum(b_sum * b_sum, 0) / WIDTH + eps) * (b_next_weight + offset)
    tl.store(p_sum + o_out, b_sum.to(dtype), mask=mask)
    tl.store(p_out + o_out, b_out.to(dtype), mask=mask)


def norm_add_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    next_weight: torch.Tensor,
    eps: float,
    *,
    offset: float = 1.0,
    rounded: bool = False,
    in_place: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `plugin.projection.residual_norm.norm_add_norm`; weights `[hidden_size]` are the w in `offset + w`: 1 for
    Gemma's norms, 0 for plain ones. Without `weight` the branch is `x`, not normed, and returned as it is.

    `x` may also be a projection's partial sums, float32 `[splits, num_tokens, hidden_size]`: they are added up and
    rounded to the residual's dtype first.

    Branch, sum and result are computed in float32 and rounded once each. What is normed at the end is the sum as it was
    before its rounding, as vLLM's norms with a residual do it, or, `rounded`, after, as a sum and a norm apart do. The
    sum is a tensor of its own or, `in_place`, the residual.

    Raises:
        ValueError: `x`, or each of its parts, and `residual` are not two `[num_tokens, hidden_size]` of rows.
    """
    num_tokens, width = residual.shape
    parts = x.shape[0] if x.dim() == 3 else 0
    if residual.shape != x.shape[-2:] or x.stride(-1) != 1 or residual.stride(1) != 1:
        raise ValueError(
            f"x is {list(x.shape)} with strides {x.stride()}, residual {list(residual.shape)} with "
            f"{residual.stride()}: not two of rows"
        )
    if in_place and not residual.is_contiguous():
        raise ValueError("a residual in place must be contiguous")
    out = residual.new_empty(num_tokens, width)
    branch = x if weight is None else residual.new_empty(num_tokens, width)
    total = residual if in_place else residual.new_empty(num_tokens, width)
    if num_tokens:
        overlap = launches_overlap(x.device)
        norm_add_norm_kernel[(num_tokens,)](
            x, residual, next_weight if weight is None else weight, next_weight, out, total, branch, eps, offset,
            x.stride(0), x.stride(-2), residual.stride(0), WIDTH=width, BLOCK=triton.next_power_of_2(width),
            SPLITS=parts, NORMED=weight is not None, ROUNDED=rounded, OVERLAP=overlap,
            # The assembler has three loads of a thread under way at a time: more threads wait less often for parts.
            num_warps=16 if parts else 4, launch_pdl=overlap,
        )  # fmt: skip
    return out, total, branch
