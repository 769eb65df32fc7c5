"""The encoder's attention in float32 on the GPU, where FlashAttention has none: many prompts, one launch, no cache.

vLLM's own prefill kernel multiplies float32 as TF32 and takes a window side of 0 for no window; this one is exact.

Runs on the CPU too, for tests, when `TRITON_INTERPRET=1` is set before the first import.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803

import math

import torch
import triton
import triton.language as tl

UNWINDOWED = 2**30
"""A side of the window that hides no key."""


@triton.jit
def attend_prompts_kernel(
    p_q, p_k, p_v, p_out, p_starts, p_key_starts, left, right, scale_log2,
    stride_q, stride_q_head, stride_k, stride_k_head, stride_v, stride_v_head, stride_out, stride_out_head,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One prompt, one query head, `BLOCK_M` queries; grid `(row blocks of the longest prompt, heads, prompts)`."""
    i_rows = tl.program_id(0)
    i_head = tl.program_id(1)
    i_prompt = tl.program_id(2)
    first = tl.load(p_starts + i_prompt).to(tl.int64)
    length = (tl.load(p_starts + i_prompt + 1) - first).to(tl.int32)
    if i_rows * BLOCK_M >= length:
        return
    first_of_keys = tl.load(p_key_starts + i_prompt).to(tl.int64)
    num_keys = (tl.load(p_key_starts + i_prompt + 1) - first_of_keys).to(tl.int32)
    o_m = i_rows * BLOCK_M + tl.arange(0, BLOCK_M)
    o_d = tl.arange(0, BLOCK_D)
    m_q = (o_m < length)[:, None] & (o_d < HEAD_DIM)[None, :]
    b_q = tl.load(
        p_q + (first + o_m)[:, None] * stride_q + i_head * stride_q_head + o_d[None, :], mask=m_q, other=0.0
    )
    b_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    b_sum = tl.zeros([BLOCK_M], tl.float32)
    b_acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    first_key = tl.maximum(i_rows * BLOCK_M - left, 0) // BLOCK_N * BLOCK_N
    end_key = tl.minimum((i_rows + 1) * BLOCK_M + right, num_keys)
    for start in range(first_key, end_key, BLOCK_N):
        o_n = start + tl.arange(0, BLOCK_N)
        m_k = (o_n < num_keys)[:, None] & (o_d < HEAD_DIM)[None, :]
        o_row = (first_of_keys + o_n)[:, None]
        i_kv_head = i_head // GROUP
        b_k = tl.load(p_k + o_row * stride_k + i_kv_head * stride_k_head + o_d[None, :], mask=m_k, other=0.0)
        b_score = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION) * scale_log2
        distance = o_m[:, None] - o_n[None, :]
        m_visible = (o_n < num_keys)[None, :] & (distance <= left) & (-distance <= right)
        b_score = tl.where(m_visible, b_score, float("-inf"))
        b_new_max = tl.maximum(b_max, tl.max(b_score, 1))
        # A row that has seen no key yet keeps -inf as its maximum; -inf - -inf would be NaN.
        b_base = tl.where(b_new_max == float("-inf"), 0.0, b_new_max)
        b_weight = tl.exp2(b_score - b_base[:, None])
        b_decay = tl.exp2(b_max - b_base)
        b_v = tl.load(p_v + o_row * stride_v + i_kv_head * stride_v_head + o_d[None, :], mask=m_k, other=0.0)
        b_acc = tl.dot(b_weight.to(b_v.dtype), b_v, b_acc * b_decay[:, None], input_precision=PRECISION)
        b_sum = b_sum * b_decay + tl.sum(b_weight, 1)
        b_max = b_new_max
    # Rows behind the prompt's end see no key and are not stored.
    b_out = b_acc / tl.where(b_sum > 0.0, b_sum, 1.0)[:, None]
    p_row = p_out + (first + o_m)[:, None] * stride_out + i_head * stride_out_head + o_d[None, :]
    tl.store(p_row, b_out.to(p_out.dtype.element_ty), mask=m_q)


def attend_prompts(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_len: int,
    sides: tuple[int, int] | None,
    scale: float,
    key_seqlens: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `bidirectional.bidirectional_attention`; `sides` are the keys visible left and right, None for all.

    `key_seqlens`, as `cu_seqlens`, says where each prompt's keys begin if its queries are only some of its tokens,
    which without a window may be any.
    """
    key_seqlens = cu_seqlens if key_seqlens is None else key_seqlens
    num_tokens, num_heads, head_dim = q.shape
    if q.stride(2) != 1 or k.stride(2) != 1 or v.stride(2) != 1:
        raise ValueError("q, k and v must be contiguous in their last dimension")
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    num_prompts = cu_seqlens.shape[0] - 1
    if num_tokens == 0 or num_prompts == 0:
        return out
    left, right = sides if sides is not None else (UNWINDOWED, UNWINDOWED)
    block = 16 if head_dim > 128 else 32  # float32 tiles of q, k and v have to fit into shared memory
    attend_prompts_kernel[(triton.cdiv(max_len, block), num_heads, num_prompts)](
        q, k, v, out, cu_seqlens, key_seqlens, left, right, scale * math.log2(math.e),
        *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *out.stride()[:2],
        GROUP=num_heads // k.shape[1], HEAD_DIM=head_dim, BLOCK_D=max(triton.next_power_of_2(head_dim), 16),
        BLOCK_M=block, BLOCK_N=block, PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=4, num_stages=1,
    )  # fmt: skip
    return out
