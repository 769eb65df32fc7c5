"""The GPU program of `few_tokens.py`: a projection of few tokens, which is all reading of weights.

cuBLAS reaches about half of the memory's bandwidth on these shapes, and none of it while the launch before runs. Here
many small programs read, and since weights depend on nothing, a launch fetches its own into the L2 cache while the one
before it drains (programmatic dependent launch). Many inputs are cut into shares, each with programs of its own, whose
partial sums what comes next adds up (`triton_parts.py`).
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl

from plugin.attention.triton_kernel import launches_overlap
from plugin.projection.triton_parts import add_up

MAX_INPUTS = 2048
"""Inputs beyond which they are always cut into shares; up to here only where those are summed behind."""

MAX_SPLITS = 16
"""Shares at most: what comes next reads 4 bytes of each for an output, in one program a token."""

TILES_OF_A_SHARE = 2
"""Tiles of `block_k` inputs that a share walks where few inputs are cut: the output projection has 4 shares."""

SPLIT_PROGRAMS = 150
"""Programs that shares of up to 16 tokens are to make at least: a few more than an H200 has multiprocessors (132), so
that all are resident at once, beside the launch before. In each three tiles of 64 x 128 are under way, 48 KiB, where
the memory's bandwidth at its latency takes some 40 KiB a multiprocessor."""

SPLIT_PROGRAMS_OF_MANY = 100
"""The same for more tokens, with a tile more under way: every share leaves sums of all tokens to be added up."""

WIDE = 8192
"""Outputs from which there are enough programs with wider tiles, too."""

FETCH_BYTES = 4 << 20
"""Of a launch's weights, what it fetches ahead: what is fetched must still be in the L2 cache when it is read, and
stands in the way of what the launch before still reads. Of 0, 4, 8 and 16 MB the best, or within one percent of it."""

LEFT_OUTPUTS = tl.constexpr(64)
"""Outputs of a tile from which the weights are the left factor of the product: rows of 64 are what Hopper's own matrix
instructions take, and they read the weights where they lie in shared memory. With tokens as rows each warp first loads
weights into registers: of the down projection alone that costs a decoder's layer 3.0 us for one token, 4.9 for 32."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a projection is cut into programs: `block_n` outputs and one of `splits` shares of the inputs each, walked in
    tiles of `block_k` inputs, of which the first `fetched` are fetched ahead."""

    block_n: int
    block_k: int
    fetched: int
    num_warps: int = 4
    num_stages: int = 4
    splits: int = 1


def fetched_tiles(
    outputs: int, inputs: int, block_k: int, splits: int, fetch_bytes: int = FETCH_BYTES
) -> int:
    """Of each program's tiles, how many are fetched ahead so that all programs together fetch up to `fetch_bytes`."""
    return min(inputs // splits // block_k, fetch_bytes // (2 * outputs * block_k * splits))


@cache
def choose_cut(outputs: int, inputs: int, num_tokens: int, summed_behind: bool = False) -> Cut | None:
    """The cut of a projection; None where it has none: only whole tiles are read, and shares of as many.

    Shares are for many inputs, and of few where they are summed behind at no cost (`summed_behind`): wide tiles, which
    are too few programs by themselves.

    The best of what `python -m benchmarks.linear --sweep` tries on an H200, of cuts that lie within one percent of each
    other the one that is best most often.
    """
    block_k = next((k for k in (128, 64, 32) if inputs % k == 0), None)
    if block_k is None:
        return None
    if inputs > MAX_INPUTS:
        return _split_cut(outputs, inputs, block_k, num_tokens > 16)
    tiles = inputs // block_k
    if summed_behind and tiles % TILES_OF_A_SHARE == 0 and outputs % 64 == 0:
        splits = tiles // TILES_OF_A_SHARE
        return Cut(64, block_k, fetched_tiles(outputs, inputs, block_k, splits), splits=splits)
    if outputs >= WIDE and num_tokens > 16 and outputs % 64 == 0:
        return Cut(64, block_k, fetched_tiles(outputs, inputs, block_k, 1), num_stages=3)
    block_n = next((n for n in ((32, 16) if outputs >= WIDE else (16,)) if outputs % n == 0), None)
    if block_n is None:
        return None
    return Cut(block_n, block_k, fetched_tiles(outputs, inputs, block_k, 1))


def _split_cut(outputs: int, inputs: int, block_k: int, many: bool) -> Cut | None:
    """The widest tiles, and of those the fewest shares, that make enough programs; `many`: of more than 16 tokens.

    Wide, since every program reads x as well, `num_tokens / block_n` times the bytes of the weights in all, and the L2
    cache that it comes from is not many times faster than the memory: at 32 tokens that is half as much again with 64
    outputs, and three times as much in all with 16.
    """
    tiles = inputs // block_k
    shares = [splits for splits in range(2, MAX_SPLITS + 1) if tiles % splits == 0]
    cuts = [(n, splits) for n in (64, 32, 16) if outputs % n == 0 for splits in shares]
    if not cuts:
        return None
    programs = SPLIT_PROGRAMS_OF_MANY if many else SPLIT_PROGRAMS
    enough = ((n, splits) for n, splits in cuts if outputs // n * splits >= programs)
    block_n, splits = next(enough, cuts[-1])
    fetched = fetched_tiles(outputs, inputs, block_k, splits)
    return Cut(block_n, block_k, fetched, num_stages=5 if many else 4, splits=splits)


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
    SPLITS: tl.constexpr, ACT: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """`BLOCK_N` outputs of all tokens, of one share of the inputs; grid `(N / BLOCK_N, SPLITS)`.

    With ACT the weight is `[2 * N, K]`, gate above up, and the result `act(gate) * up`, rounded as apart; all inputs
    are one share then. Of several shares each writes a float32 `[num_tokens, N]` of its own.
    """
    SHARE: tl.constexpr = K // SPLITS  # noqa: N806
    i_n, i_split = tl.program_id(0), tl.program_id(1)
    o_n = i_n * BLOCK_N + tl.arange(0, BLOCK_N)
    o_k = i_split * SHARE + tl.arange(0, BLOCK_K)
    if OVERLAP:
        p_first = p_weight + i_n.to(tl.int64) * BLOCK_N * K + i_split * SHARE
        fetch(p_first, K, fetched, BLOCK_N, BLOCK_K)
        if ACT != "":
            fetch(p_first + N * K, K, fetched, BLOCK_N, BLOCK_K)
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    o_t = tl.arange(0, BLOCK_T)
    m_t = o_t < num_tokens
    p_x_tile = p_x + o_t[:, None] * stride_x + o_k[None, :]
    p_tile = p_weight + o_n[:, None].to(tl.int64) * K + o_k[None, :]
    LEFT: tl.constexpr = BLOCK_N >= LEFT_OUTPUTS  # noqa: N806
    b_out = tl.zeros([BLOCK_N, BLOCK_T] if LEFT else [BLOCK_T, BLOCK_N], tl.float32)
    b_up = tl.zeros_like(b_out)
    for first in range(0, SHARE, BLOCK_K):
        b_x = tl.load(p_x_tile + first, mask=m_t[:, None], other=0.0)
        b_weight = tl.load(p_tile + first)
        b_out = tl.dot(b_weight, tl.trans(b_x), b_out) if LEFT else tl.dot(b_x, tl.trans(b_weight), b_out)
        if ACT != "":
            b_weight_up = tl.load(p_tile + N * K + first)
            b_up = (
                tl.dot(b_weight_up, tl.trans(b_x), b_up) if LEFT else tl.dot(b_x, tl.trans(b_weight_up), b_up)
            )
    if LEFT:
        b_out, b_up = tl.trans(b_out), tl.trans(b_up)
    o_out = (i_split * num_tokens + o_t[:, None]) * N + o_n[None, :]
    m_out = m_t[:, None] & (o_n < N)[None, :]
    dtype = p_out.dtype.element_ty
    if ACT != "":
        b_gate = activated(b_out.to(dtype).to(tl.float32), ACT).to(dtype).to(tl.float32)
        b_out = b_gate * b_up.to(dtype).to(tl.float32)
    tl.store(p_out + o_out, b_out.to(dtype), mask=m_out)


def project_parts(
    x: torch.Tensor, weight: torch.Tensor, cut: Cut, act: str = "", out: torch.Tensor | None = None
) -> torch.Tensor:
    """`project`, but of several shares the sum is left to be made: float32 `[splits, num_tokens, outputs]`.

    Raises:
        ValueError: `act` of several shares.
    """
    num_tokens, inputs = x.shape
    outputs = weight.shape[0] // 2 if act else weight.shape[0]
    if cut.splits > 1:
        if act:
            raise ValueError(f"{cut.splits} shares of gate and up: their activation takes the sums")
        out = x.new_empty(cut.splits, num_tokens, outputs, dtype=torch.float32)
    elif out is None:
        out = x.new_empty(num_tokens, outputs)
    overlap = launches_overlap(x.device)
    few_tokens_kernel[(outputs // cut.block_n, cut.splits)](
        x, weight, out, num_tokens, cut.fetched, x.stride(0),
        N=outputs, K=inputs, BLOCK_T=max(triton.next_power_of_2(num_tokens), 16),
        BLOCK_N=cut.block_n, BLOCK_K=cut.block_k, SPLITS=cut.splits, ACT=act, OVERLAP=overlap,
        num_warps=cut.num_warps, num_stages=cut.num_stages, launch_pdl=overlap,
    )  # fmt: skip
    return out


def project(
    x: torch.Tensor, weight: torch.Tensor, cut: Cut, act: str = "", out: torch.Tensor | None = None
) -> torch.Tensor:
    """`x` `[num_tokens, inputs]` times `weight` `[outputs, inputs]` transposed: `[num_tokens, outputs]`, in `out` if
    that is given, contiguous.

    With `act`, "gelu" or "silu", `act(gate) * up` of a weight with gate above up: half as many outputs.

    Raises:
        ValueError: `act` of several shares.
    """
    product = project_parts(x, weight, cut, act, out)
    if cut.splits == 1:
        return product
    return add_up(product, x.new_empty(product.shape[1:]) if out is None else out)
