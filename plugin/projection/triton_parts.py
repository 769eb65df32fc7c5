"""Partial sums of a projection whose inputs are cut into shares, and the GPU program that adds them up.

The shares' programs run side by side and each leaves a float32 sum of its own. What comes next adds them, always in
the order of the shares and rounded once, as a projection's output is: `norm_add_norm_kernel` where that is a norm, and
where it is not the program here.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803

import torch
import triton
import triton.language as tl

from plugin.attention.triton_kernel import launches_overlap

OUTPUTS = 512
"""Of a program that adds up."""


@triton.jit
def sum_of_parts(p_part, stride_part, mask, SPLITS: tl.constexpr):
    """The sum over the shares, float32; `p_part` points into the first share's."""
    b_sum = tl.load(p_part, mask=mask, other=0.0)
    for i_part in tl.static_range(1, SPLITS):
        b_sum += tl.load(p_part + i_part * stride_part, mask=mask, other=0.0)
    return b_sum


@triton.jit
def add_up_kernel(
    p_parts, p_out, stride_part,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """`BLOCK` outputs of one token; grid `(num_tokens, WIDTH / BLOCK)`."""
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = o < WIDTH
    o += tl.program_id(0) * WIDTH
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    b_sum = sum_of_parts(p_parts + o, stride_part, mask, SPLITS)
    tl.store(p_out + o, b_sum.to(p_out.dtype.element_ty), mask=mask)


def add_up(parts: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """The sum of `parts` `[splits, num_tokens, outputs]`, float32, into `out` `[num_tokens, outputs]`; both contiguous.

    Raises:
        ValueError: they are not.
    """
    splits, num_tokens, width = parts.shape
    if out.shape != (num_tokens, width) or not (out.is_contiguous() and parts.is_contiguous()):
        raise ValueError(
            f"parts are {list(parts.shape)} with strides {parts.stride()}, their sum {list(out.shape)} with "
            f"{out.stride()}: not one after another"
        )
    overlap = launches_overlap(parts.device)
    add_up_kernel[(num_tokens, triton.cdiv(width, OUTPUTS))](
        parts, out, parts.stride(0), WIDTH=width, BLOCK=OUTPUTS, SPLITS=splits, OVERLAP=overlap, num_warps=4,
        launch_pdl=overlap,
    )  # fmt: skip
    return out
