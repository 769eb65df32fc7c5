"""Greedy drafting: rows of logits in one launch, and DSpark blocks of the vanilla Markov head in one for each slot.

torch's argmax gives a row of 32 000 logits to one block of threads that reads it slowly (9 us on an H200, of 430 for a
whole draft), and the sum before it and the mapping behind it are five launches more. DSpark would pay all of it for
each slot, and a row of the embedding and a product over the vocabulary with it. Of the bias `markov_w2
markov_w1[previous]` a program needs no more than the previous token, and it reads its part of `markov_w2` while the
launch before it drains.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803

import torch
import triton
import triton.language as tl

from plugin.attention.triton_kernel import launches_overlap

MAX_BLOCK = 32_768

BLOCK_V = 128
"""Logits of a program."""

MAX_ROWS = 16
"""Requests up to which every program looks at the results of all others, a slot before."""

MAX_PROGRAMS = 512
MAX_RANK = 256


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


@triton.jit
def previous_tokens(p_best, p_target, o_row, m_row, PROGRAMS: tl.constexpr, BLOCK_P: tl.constexpr):
    """Of each row the target of the first of the largest logits that the programs found, `[BLOCK_T]`."""
    o_p = tl.arange(0, BLOCK_P)
    o = o_row[:, None] * PROGRAMS + o_p[None, :]
    mask = m_row[:, None] & (o_p < PROGRAMS)[None, :]
    # Other multiprocessors wrote them: past the L1 cache.
    b_best = tl.load(p_best + o, mask=mask, other=float("-inf"), cache_modifier=".cg")
    b_target = tl.load(p_target + o, mask=mask, other=0, cache_modifier=".cg")
    _, i_best = tl.max(b_best, 1, return_indices=True)
    return tl.sum(tl.where(o_p[None, :] == i_best[:, None], b_target, 0), 1)


@triton.jit(do_not_specialize=["step", "num_rows"])
def markov_kernel(
    p_anchors, p_base, p_w1, p_w2, p_d2t, p_best, p_target, p_out, step, num_rows,
    stride_anchor, stride_base_row, stride_base_step, stride_out,
    VOCAB: tl.constexpr, RANK: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_P: tl.constexpr,
    FIRST: tl.constexpr, MAPPED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """`BLOCK_V` logits of slot `step` of all rows; grid `(VOCAB / BLOCK_V,)`.

    `best` and `target` `[K, num_rows, programs]`: each program's largest logit and its token in the verifier's
    vocabulary. The slot before it is picked from them, by every program for itself; the first one stores it.
    """
    PROGRAMS: tl.constexpr = (VOCAB + BLOCK_V - 1) // BLOCK_V  # noqa: N806
    i_v = tl.program_id(0)
    o_v = i_v * BLOCK_V + tl.arange(0, BLOCK_V)
    m_v = o_v < VOCAB
    o_rank = tl.arange(0, RANK)
    o_row = tl.arange(0, BLOCK_T)
    m_row = o_row < num_rows
    p_step = p_base + step * stride_base_step + o_row.to(tl.int64)[:, None] * stride_base_row + o_v[None, :]
    m_base = m_row[:, None] & m_v[None, :]
    # Weights, and behind the first slot the logits, are older than the launch before this one.
    b_w2 = tl.load(p_w2 + o_v.to(tl.int64)[:, None] * RANK + o_rank[None, :], mask=m_v[:, None], other=0.0)
    b_target = o_v
    if MAPPED:
        b_target += tl.load(p_d2t + o_v, mask=m_v, other=0).to(tl.int32)
    if not FIRST:
        b_base = tl.load(p_step, mask=m_base, other=float("-inf"))
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if FIRST:
        b_base = tl.load(p_step, mask=m_base, other=float("-inf"))
        b_token = tl.load(p_anchors + o_row * stride_anchor, mask=m_row, other=0).to(tl.int32)
    else:
        o_before = (step - 1) * num_rows * PROGRAMS
        b_token = previous_tokens(p_best + o_before, p_target + o_before, o_row, m_row, PROGRAMS, BLOCK_P)
        if i_v == 0:
            tl.store(p_out + o_row * stride_out + step - 1, b_token.to(tl.int64), mask=m_row)
    b_embedded = tl.load(
        p_w1 + b_token.to(tl.int64)[:, None] * RANK + o_rank[None, :], mask=m_row[:, None], other=0.0
    )
    dtype = p_base.dtype.element_ty
    b_bias = tl.dot(b_embedded, tl.trans(b_w2)).to(dtype).to(tl.float32)
    b_logit = (b_base.to(tl.float32) + b_bias).to(dtype).to(tl.float32)
    b_logit = tl.where(m_v[None, :], b_logit, float("-inf"))
    top, i_top = tl.max(b_logit, 1, return_indices=True)
    o_best = (step * num_rows + o_row) * PROGRAMS + i_v
    found = tl.sum(tl.where(tl.arange(0, BLOCK_V)[None, :] == i_top[:, None], b_target[None, :], 0), 1)
    tl.store(p_best + o_best, top, mask=m_row)
    tl.store(p_target + o_best, found, mask=m_row)


@triton.jit(do_not_specialize=["step", "num_rows"])
def last_token_kernel(
    p_best, p_target, p_out, step, num_rows, stride_out,
    PROGRAMS: tl.constexpr, BLOCK_P: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Picks slot `step`, the last; grid `(num_rows,)`."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    o_row = tl.program_id(0) + tl.arange(0, 1)
    o = step * num_rows * PROGRAMS
    b_token = previous_tokens(p_best + o, p_target + o, o_row, o_row >= 0, PROGRAMS, BLOCK_P)
    tl.store(p_out + o_row * stride_out + step, b_token.to(tl.int64))


def serves(rows: torch.Tensor, w2: torch.Tensor) -> bool:
    """Whether the programs take as many blocks as `rows` `[num_rows, ...]` has, of its dtype, and `markov_w2`."""
    size, rank = w2.shape
    return (
        rows.dtype in (torch.bfloat16, torch.float16)
        and rows.dtype == w2.dtype
        and 0 < rows.shape[0] <= MAX_ROWS
        and size <= MAX_PROGRAMS * BLOCK_V
        and 16 <= rank <= MAX_RANK
        and rank & (rank - 1) == 0
    )


def pick_block(
    base: torch.Tensor,
    anchors: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    d2t: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """Tokens of the verifier's vocabulary into `out` `[num_rows, K]`, int64, last stride 1: slot by slot `i + d2t[i]`
    for `i = argmax(base + w2 w1[previous])`, of equal ones the first.

    Args:
        base: `[num_rows, K, draft_vocab_size]`, last stride 1.
        anchors: `[num_rows]`, the tokens before the first slot.
        w1: `[vocab_size, rank]`.
        w2: `[draft_vocab_size, rank]`.
        d2t: `[draft_vocab_size]`; None for the verifier's own vocabulary.
    """
    num_rows, steps, size = base.shape
    rank = w2.shape[1]
    programs = triton.cdiv(size, BLOCK_V)
    block_p = triton.next_power_of_2(programs)
    best = torch.empty(steps, num_rows, programs, dtype=torch.float32, device=base.device)
    target = torch.empty(steps, num_rows, programs, dtype=torch.int32, device=base.device)
    overlap = launches_overlap(base.device)
    for step in range(steps):
        markov_kernel[(programs,)](
            anchors, base, w1, w2, best if d2t is None else d2t, best, target, out, step, num_rows,
            anchors.stride(0), base.stride(0), base.stride(1), out.stride(0),
            VOCAB=size, RANK=rank, BLOCK_T=max(triton.next_power_of_2(num_rows), 16), BLOCK_V=BLOCK_V, BLOCK_P=block_p,
            FIRST=step == 0, MAPPED=d2t is not None, OVERLAP=overlap, num_warps=8, launch_pdl=overlap,
        )  # fmt: skip
    last_token_kernel[(num_rows,)](
        best, target, out, steps - 1, num_rows, out.stride(0),
        PROGRAMS=programs, BLOCK_P=block_p, OVERLAP=overlap, num_warps=4, launch_pdl=overlap,
    )  # fmt: skip
