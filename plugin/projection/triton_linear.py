"""The GPU program of `few_tokens.py`: a projection of few tokens, which is all reading of weights.

cuBLAS reaches about half of the memory's bandwidth on these shapes, and none of it while the launch before runs. Here
many small programs read, and since weights depend on nothing, a launch fetches its own into the L2 cache while the one
before it drains (programmatic dependent launch).
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl

from plugin.attention.triton_kernel import launches_overlap

MAX_INPUTS = 2048
"""Inputs up to which a program walks all of them. Beyond, parts would have to be added up, and cuBLAS is as fast."""

FETCH_BYTES = 8 << 20
"""Of a launch's weights, what it fetches ahead: what is fetched must still be in the L2 cache when it is read."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a projection is cut into programs: `block_n` outputs each, walked in tiles of `block_k` inputs, of which the
    first `fetched` are fetched ahead."""

    block_n: int
    block_k: int
    fetched: int
    num_warps: int = 4
    num_stages: int = 4


@cache
def choose_cut(outputs: int, inputs: int) -> Cut | None:
    """The cut of a projection; None where it has none: only whole tiles of not too many inputs are read."""
    block_k = next((k for k in (128, 64, 32) if inputs % k == 0), None)
    block_n = next((n for n in ((32, 16) if outputs >= 8192 else (16,)) if outputs % n == 0), None)
    if block_k is None or block_n is None or inputs > MAX_INPUTS:
        return None
    return Cut(block_n, block_k, min(inputs // block_k, FETCH_BYTES // (2 * outputs * block_k)))


@triton.jit
def fetch(p, stride, n_tiles, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """Fetch the first `n_tiles` tiles of 16-bit weights into the L2 cache, in lines of 128 bytes; nothing waits for it.

    As many tiles at once as give each of 128 threads a line: fewer, and several threads would fetch the same.
    """
    ROW_LINES: tl.constexpr = (BLOCK_K + 32) // 64  # noqa: N806
    LINES: tl.constexpr = BLOCK_N * ROW_LINES  # noqa: N806
    TILES: tl.constexpr = max(128 // LINES, 1)  # noqa: N806
    o_line = tl.arange(0, TILES * LINES)
    p_line = p + o_line % LINES // ROW_LINES * stride + o_line % ROW_LINES * 64
    for first in range(0, n_tiles, TILES):
        o_tile = first + o_line // LINES
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.lt.s32 p, $2, $3; @p prefetch.global.L2 [$1]; mov.u32 $0, 0; }",
            "=r,l,r,r",
            [(p_line + o_tile * BLOCK_K).to(tl.int64), o_tile, n_tiles],
            tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def activated(x, ACT: tl.constexpr):
    """`x * sigmoid(x)` or `gelu(x, approximate="tanh")`, in which 1 + tanh(y) is 2 sigmoid(2 y); float32."""
    y = x if ACT == "silu" else 1.5957691216057308 * (x + 0.044715 * x * x * x)
    return x * tl.sigmoid(y)


@triton.jit(do_not_specialize=["num_tokens", "fetched"])
def few_tokens_kernel(
    p_x, p_weight, p_out, num_tokens, fetched, stride_x,
    N: tl.constexpr, K: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    ACT: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """`BLOCK_N` outputs of all tokens; grid `(N / BLOCK_N,)`.

    With ACT the weight is `[2 * N, K]`, gate above up, and the result `act(gate) * up`, rounded as apart.
    """
    i_n = tl.program_id(0)
    o_n = i_n * BLOCK_N + tl.arange(0, BLOCK_N)
    o_k = tl.arange(0, BLOCK_K)
    if OVERLAP:
        p_first = p_weight + i_n.to(tl.int64) * BLOCK_N * K
        fetch(p_first, K, fetched, BLOCK_N, BLOCK_K)
        if ACT != "":
            fetch(p_first + N * K, K, fetched, BLOCK_N, BLOCK_K)
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    o_t = tl.arange(0, BLOCK_T)
    m_t = o_t < num_tokens
    p_x_tile = p_x + o_t[:, None] * stride_x + o_k[None, :]
    p_tile = p_weight + o_n[:, None].to(tl.int64) * K + o_k[None, :]
    b_out = tl.zeros([BLOCK_T, BLOCK_N], tl.float32)
    b_up = tl.zeros([BLOCK_T, BLOCK_N], tl.float32)
    for first in range(0, K, BLOCK_K):
        b_x = tl.load(p_x_tile + first, mask=m_t[:, None], other=0.0)
        b_weight = tl.load(p_tile + first)
        b_out = tl.dot(b_x, tl.trans(b_weight), b_out)
        if ACT != "":
            b_weight_up = tl.load(p_tile + N * K + first)
            b_up = tl.dot(b_x, tl.trans(b_weight_up), b_up)
    o_out = o_t[:, None] * N + o_n[None, :]
    m_out = m_t[:, None] & (o_n < N)[None, :]
    dtype = p_out.dtype.element_ty
    if ACT != "":
        b_gate = activated(b_out.to(dtype).to(tl.float32), ACT).to(dtype).to(tl.float32)
        b_out = b_gate * b_up.to(dtype).to(tl.float32)
    tl.store(p_out + o_out, b_out.to(dtype), mask=m_out)


def project(x: torch.Tensor, weight: torch.Tensor, cut: Cut, act: str = "") -> torch.Tensor:
    """`x` `[num_tokens, inputs]` times `weight` `[outputs, inputs]` transposed: `[num_tokens, outputs]`.

    With `act`, "gelu" or "silu", `act(gate) * up` of a weight with gate above up: half as many outputs.
    """
    num_tokens, inputs = x.shape
    outputs = weight.shape[0] // 2 if act else weight.shape[0]
    out = x.new_empty(num_tokens, outputs)
    overlap = launches_overlap(x.device)
    few_tokens_kernel[(outputs // cut.block_n,)](
        x, weight, out, num_tokens, cut.fetched, x.stride(0),
        N=outputs, K=inputs, BLOCK_T=max(triton.next_power_of_2(num_tokens), 16),
        BLOCK_N=cut.block_n, BLOCK_K=cut.block_k, ACT=act, OVERLAP=overlap,
        num_warps=cut.num_warps, num_stages=cut.num_stages, launch_pdl=overlap,
    )  # fmt: skip
    return out
