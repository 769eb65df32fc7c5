"""What lies between a q/k/v projection and its attention, as one GPU program: norm, rotation, the decoder's page write.

Apart these are two or three launches in every layer, each a microsecond or two whatever the batch. The measured gain is
a row of `python -m benchmarks.attention`.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803

import torch
import triton
import triton.language as tl

from plugin.attention.triton_kernel import check_cache, launches_overlap


@triton.jit
def load_halves(p, HALF: tl.constexpr):
    """Both halves of `[2 * HALF]` values, in float32."""
    o_d = tl.arange(0, HALF)
    return tl.load(p + o_d).to(tl.float32), tl.load(p + HALF + o_d).to(tl.float32)


@triton.jit
def norm_rope(p_x, b_weight_low, b_weight_high, b_cos, b_sin, eps, offset, HALF: tl.constexpr):
    """One head `[2 * HALF]`: RMS norm with weight offset + w, rounded as the unfused norm rounds, then the rotation."""
    dtype = p_x.dtype.element_ty
    b_low, b_high = load_halves(p_x, HALF)
    scale = tl.rsqrt((tl.sum(b_low * b_low, 0) + tl.sum(b_high * b_high, 0)) / (2 * HALF) + eps)
    b_low = (b_low * scale * (offset + b_weight_low)).to(dtype).to(tl.float32)
    b_high = (b_high * scale * (offset + b_weight_high)).to(dtype).to(tl.float32)
    return b_low * b_cos - b_high * b_sin, b_high * b_cos + b_low * b_sin


@triton.jit
def norm_rope_write_kernel(
    p_qkv, p_q_out, p_cache, p_slots, p_positions, p_cos_sin, p_q_weight, p_k_weight, eps, offset,
    stride_qkv_token, stride_q_token, stride_block, stride_head, stride_slot,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HALF: tl.constexpr, PAGE: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """One token and one head; grid `(num_heads + num_kv_heads, num_tokens)`: query heads first, then KV heads."""
    i_head = tl.program_id(0)
    i_token = tl.program_id(1).to(tl.int64)
    o_d = tl.arange(0, HALF)
    p_row = p_qkv + i_token * stride_qkv_token
    # Slots and positions are older than the launch before this one, and are read while it drains.
    slot = tl.load(p_slots + i_token).to(tl.int64)
    b_cos, b_sin = load_halves(p_cos_sin + tl.load(p_positions + i_token).to(tl.int64) * 2 * HALF, HALF)
    b_weight_low, b_weight_high = load_halves(p_q_weight if i_head < NUM_HEADS else p_k_weight, HALF)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if i_head < NUM_HEADS:
        b_low, b_high = norm_rope(
            p_row + i_head * 2 * HALF, b_weight_low, b_weight_high, b_cos, b_sin, eps, offset, HALF
        )
        p_out = p_q_out + i_token * stride_q_token + i_head * 2 * HALF
        tl.store(p_out + o_d, b_low.to(p_q_out.dtype.element_ty))
        tl.store(p_out + HALF + o_d, b_high.to(p_q_out.dtype.element_ty))
        return
    if slot < 0:
        return
    b_low, b_high = norm_rope(
        p_row + i_head * 2 * HALF, b_weight_low, b_weight_high, b_cos, b_sin, eps, offset, HALF
    )
    i_kv_head = (i_head - NUM_HEADS).to(tl.int64)
    p_slot = p_cache + (slot // PAGE) * stride_block + (slot % PAGE) * stride_slot + i_kv_head * stride_head
    tl.store(p_slot + o_d, b_low.to(p_cache.dtype.element_ty))
    tl.store(p_slot + HALF + o_d, b_high.to(p_cache.dtype.element_ty))
    o_v = tl.arange(0, 2 * HALF)
    b_v = tl.load(p_row + (i_head + NUM_KV_HEADS) * 2 * HALF + o_v)
    tl.store(p_slot + 2 * HALF + o_v, b_v.to(p_cache.dtype.element_ty))


def norm_rope_write(
    qkv: torch.Tensor,
    q_out: torch.Tensor,
    kv_cache: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    offset: float = 1.0,
) -> None:
    """Normed and rotated queries into `q_out`; normed and rotated keys and plain values into their pages.

    On Hopper the launch begins while the one before it drains: that one must not write `slots` or `positions`.

    Args:
        qkv: `[num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]`, as the projection gives it.
        q_out: `[num_tokens, num_heads, head_dim]`, heads contiguous.
        kv_cache: `[num_blocks, num_kv_heads, block_size, 2 * head_dim]`, any strides whose last is 1.
        slots: `[num_tokens]`, block * block_size + offset; a token below zero is padding and is not stored.
        positions: `[num_tokens]`.
        cos_sin: `[max_positions, head_dim]`, cosines in the first half, sines in the second, as vLLM's rotary
            embedding keeps them.
        q_weight, k_weight: `[head_dim]`, the norms' w in `x / rms(x) * (offset + w)`.
        eps: the norms' epsilon.
        offset: 1 for Gemma's norms, 0 for plain ones.
    """
    num_tokens, num_heads, head_dim = q_out.shape
    num_kv_heads = kv_cache.shape[1]
    check_cache("kv_cache", kv_cache, num_kv_heads, head_dim)
    width = (num_heads + 2 * num_kv_heads) * head_dim
    if qkv.shape != (num_tokens, width) or qkv.stride(1) != 1:
        raise ValueError(
            f"qkv is {list(qkv.shape)} with strides {qkv.stride()}, not [{num_tokens}, {width}] in rows"
        )
    if q_out.stride()[1:] != (head_dim, 1):
        raise ValueError(f"q_out has strides {q_out.stride()}, its heads are not contiguous")
    if cos_sin.shape[1] != head_dim or not cos_sin.is_contiguous():
        raise ValueError(f"cos_sin is {list(cos_sin.shape)}, not a contiguous [max_positions, {head_dim}]")
    if num_tokens == 0:
        return
    overlap = launches_overlap(qkv.device)
    norm_rope_write_kernel[(num_heads + num_kv_heads, num_tokens)](
        qkv, q_out, kv_cache, slots, positions, cos_sin, q_weight, k_weight, eps, offset,
        qkv.stride(0), q_out.stride(0), *kv_cache.stride()[:3],
        NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, HALF=head_dim // 2, PAGE=kv_cache.shape[2],
        OVERLAP=overlap, num_warps=1, launch_pdl=overlap,
    )  # fmt: skip


@triton.jit
def norm_rope_kernel(
    p_qkv, p_positions, p_cos_sin, p_q_weight, p_k_weight, eps, stride_token,
    NUM_HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """One token and one head, in place; grid `(num_tokens, num_heads + num_kv_heads)`: query heads, then key heads."""
    i_token = tl.program_id(0).to(tl.int64)
    i_head = tl.program_id(1)
    o_d = tl.arange(0, HALF)
    p_x = p_qkv + i_token * stride_token + i_head * 2 * HALF
    b_cos, b_sin = load_halves(p_cos_sin + tl.load(p_positions + i_token).to(tl.int64) * 2 * HALF, HALF)
    b_weight_low, b_weight_high = load_halves(p_q_weight if i_head < NUM_HEADS else p_k_weight, HALF)
    b_low, b_high = norm_rope(p_x, b_weight_low, b_weight_high, b_cos, b_sin, eps, 1.0, HALF)
    tl.store(p_x + o_d, b_low.to(p_qkv.dtype.element_ty))
    tl.store(p_x + HALF + o_d, b_high.to(p_qkv.dtype.element_ty))


def norm_rope_in_place(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    num_heads: int,
    num_kv_heads: int,
) -> None:
    """Norm and rotate the queries and keys of `qkv` in place, as the encoder wants them; values stay as they are.

    Args:
        qkv, positions, cos_sin: see `norm_rope_write`; head_dim is a power of two.
        q_weight, k_weight: `[head_dim]`, the Gemma norms' w in `x / rms(x) * (1 + w)`.

    Raises:
        ValueError: a shape or stride that the program does not serve.
    """
    num_tokens, head_dim = qkv.shape[0], q_weight.shape[0]
    if qkv.shape[1] != (num_heads + 2 * num_kv_heads) * head_dim or qkv.stride(1) != 1:
        raise ValueError(f"qkv is {list(qkv.shape)} with strides {qkv.stride()}")
    if cos_sin.shape[1] != head_dim or not cos_sin.is_contiguous():
        raise ValueError(f"cos_sin is {list(cos_sin.shape)}, not a contiguous [max_positions, {head_dim}]")
    if num_tokens:
        norm_rope_kernel[(num_tokens, num_heads + num_kv_heads)](
            qkv, positions, cos_sin, q_weight, k_weight, eps, qkv.stride(0),
            NUM_HEADS=num_heads, HALF=head_dim // 2, num_warps=1,
        )  # fmt: skip
