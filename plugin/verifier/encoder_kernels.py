"""The encoder's small operations as GPU programs: its norms with their residuals, and the norm and rotation of q and k.

vLLM's `GemmaRMSNorm` runs as eight launches of plain PyTorch outside of torch.compile, and the encoder has six a layer.
Here a sandwich (norm of the branch, sum, norm for the next branch) is one launch. Rounding follows the unfused
operations: each norm and each sum is computed in float32 and rounded to the model's dtype once.

Runs on the CPU too, for tests, when `TRITON_INTERPRET=1` is set before the first import.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803

import torch
import triton
import triton.language as tl


@triton.jit
def _rms_norm(b_x, p_weight, o_d, m_d, eps, SIZE: tl.constexpr):
    """`x / rms(x) * (1 + w)` in float32; columns outside of `m_d` are zero."""
    scale = tl.rsqrt(tl.sum(b_x * b_x, 0) / SIZE + eps)
    return b_x * scale * (1.0 + tl.load(p_weight + o_d, mask=m_d, other=0.0).to(tl.float32))


@triton.jit
def sandwich_kernel(
    p_branch, p_post, p_residual, p_pre, p_normed, eps, stride_branch,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """One token; grid `(num_tokens,)`. Without `ADD` only the norm of the residual."""
    i_token = tl.program_id(0).to(tl.int64)
    o_d = tl.arange(0, BLOCK)
    m_d = o_d < SIZE
    dtype = p_residual.dtype.element_ty
    b_x = tl.load(p_residual + i_token * SIZE + o_d, mask=m_d, other=0.0).to(tl.float32)
    if ADD:
        b_branch = tl.load(p_branch + i_token * stride_branch + o_d, mask=m_d, other=0.0).to(tl.float32)
        b_branch = _rms_norm(b_branch, p_post, o_d, m_d, eps, SIZE).to(dtype).to(tl.float32)
        b_x = (b_x + b_branch).to(dtype)
        tl.store(p_residual + i_token * SIZE + o_d, b_x, mask=m_d)
        b_x = b_x.to(tl.float32)
    b_x = _rms_norm(b_x, p_pre, o_d, m_d, eps, SIZE)
    tl.store(p_normed + i_token * SIZE + o_d, b_x.to(dtype), mask=m_d)


def sandwich_norm(
    residual: torch.Tensor,
    pre: torch.Tensor,
    eps: float,
    branch: torch.Tensor | None = None,
    post: torch.Tensor | None = None,
) -> torch.Tensor:
    """Add `norm(branch, post)` to `residual`, in place, where there is a branch; return `norm(residual, pre)`.

    Args:
        residual: `[num_tokens, hidden_size]`, contiguous.
        pre, post: `[hidden_size]`, the Gemma norms' w in `x / rms(x) * (1 + w)`.
        branch: as `residual`, rows contiguous.
    """
    if not residual.is_contiguous() or (branch is not None and branch.stride(1) != 1):
        raise ValueError("the residual is not contiguous, or the branch's rows are not")
    num_tokens, size = residual.shape
    normed = torch.empty_like(residual)
    add = branch is not None
    block = triton.next_power_of_2(size)
    if num_tokens:
        sandwich_kernel[(num_tokens,)](
            branch if add else residual, post if add else pre, residual, pre, normed, eps,
            branch.stride(0) if branch is not None else 0,
            SIZE=size, BLOCK=block, ADD=add, num_warps=min(max(block // 512, 1), 8),
        )  # fmt: skip
    return normed


@triton.jit
def _q_or_k(p_q, p_k, m_d, is_query):
    """The queries' or the keys' values in float32."""
    b_q = tl.load(p_q, mask=m_d, other=0.0)
    b_k = tl.load(p_k, mask=m_d, other=0.0)
    return tl.where(is_query, b_q, b_k).to(tl.float32)


@triton.jit
def qk_norm_rope_kernel(
    p_qkv, p_positions, p_cos_sin, p_q_weight, p_k_weight, eps, stride_token,
    NUM_HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One token and one head, in place; grid `(num_tokens, num_heads + num_kv_heads)`: query heads, then key heads."""
    i_token = tl.program_id(0).to(tl.int64)
    i_head = tl.program_id(1)
    o_d = tl.arange(0, BLOCK)
    m_d = o_d < HALF
    dtype = p_qkv.dtype.element_ty
    p_low = p_qkv + i_token * stride_token + i_head * 2 * HALF + o_d
    is_query = i_head < NUM_HEADS
    b_low = tl.load(p_low, mask=m_d, other=0.0).to(tl.float32)
    b_high = tl.load(p_low + HALF, mask=m_d, other=0.0).to(tl.float32)
    scale = tl.rsqrt((tl.sum(b_low * b_low, 0) + tl.sum(b_high * b_high, 0)) / (2 * HALF) + eps)
    b_low_weight = 1.0 + _q_or_k(p_q_weight + o_d, p_k_weight + o_d, m_d, is_query)
    b_high_weight = 1.0 + _q_or_k(p_q_weight + HALF + o_d, p_k_weight + HALF + o_d, m_d, is_query)
    b_low = (b_low * scale * b_low_weight).to(dtype).to(tl.float32)
    b_high = (b_high * scale * b_high_weight).to(dtype).to(tl.float32)
    p_rotation = p_cos_sin + tl.load(p_positions + i_token).to(tl.int64) * 2 * HALF + o_d
    b_cos = tl.load(p_rotation, mask=m_d, other=0.0).to(tl.float32)
    b_sin = tl.load(p_rotation + HALF, mask=m_d, other=0.0).to(tl.float32)
    tl.store(p_low, (b_low * b_cos - b_high * b_sin).to(dtype), mask=m_d)
    tl.store(p_low + HALF, (b_high * b_cos + b_low * b_sin).to(dtype), mask=m_d)


def qk_norm_rope(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    num_heads: int,
    num_kv_heads: int,
) -> None:
    """Norm and rotate the queries and keys of `qkv` in place; values stay as they are.

    Args:
        qkv: `[num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]`, rows contiguous.
        positions: `[num_tokens]`.
        cos_sin: `[max_positions, head_dim]`, cosines in the first half, sines in the second, as vLLM's rotary
            embedding keeps them.
        q_weight, k_weight: `[head_dim]`, the Gemma norms' w.
    """
    head_dim = q_weight.shape[0]
    if qkv.shape[1] != (num_heads + 2 * num_kv_heads) * head_dim or qkv.stride(1) != 1:
        raise ValueError(f"qkv is {list(qkv.shape)} with strides {qkv.stride()}")
    if cos_sin.shape[1] != head_dim or not cos_sin.is_contiguous():
        raise ValueError(f"cos_sin is {list(cos_sin.shape)}, not a contiguous [max_positions, {head_dim}]")
    if qkv.shape[0]:
        qk_norm_rope_kernel[(qkv.shape[0], num_heads + num_kv_heads)](
            qkv, positions, cos_sin, q_weight, k_weight, eps, qkv.stride(0),
            NUM_HEADS=num_heads, HALF=head_dim // 2, BLOCK=triton.next_power_of_2(head_dim // 2), num_warps=1,
        )  # fmt: skip
