"""The context of all draft layers on the GPU: one program for its norm, and one for its keys and values, from their
projection to their pages.

vLLM takes a copy, a norm, a rotation and a write for each layer for the latter, in every step.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from plugin.attention.norm_rope import load_halves, norm_rope
from plugin.attention.triton_kernel import check_cache, launches_overlap


@triton.jit
def context_norm_kernel(
    p_taps, p_fusion, p_weight, p_out, eps, stride_token, num_tokens,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, TAPS: tl.constexpr, FUSED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One layer's context of one token; grid `(num_tokens, num_layers)`."""
    i_token = tl.program_id(0).to(tl.int64)
    i_layer = tl.program_id(1)
    o = tl.arange(0, BLOCK)
    mask = o < WIDTH
    b_weight = tl.load(p_weight + o, mask=mask, other=0.0).to(tl.float32)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    b_context = tl.zeros([BLOCK], tl.float32)
    for i_tap in tl.static_range(TAPS):
        b_tap = tl.load(p_taps + i_token * stride_token + i_tap * WIDTH + o, mask=mask, other=0.0).to(
            tl.float32
        )
        if FUSED:
            b_tap *= tl.load(p_fusion + i_layer * TAPS + i_tap).to(tl.float32)
        b_context += b_tap
    dtype = p_out.dtype.element_ty
    b_context = b_context.to(dtype).to(tl.float32)
    b_out = b_context * tl.rsqrt(tl.sum(b_context * b_context, 0) / WIDTH + eps) * b_weight
    tl.store(p_out + (i_layer.to(tl.int64) * num_tokens + i_token) * WIDTH + o, b_out.to(dtype), mask=mask)


def norm_context(
    states: torch.Tensor, fusion: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """The normed context of every layer, `[num_layers, num_tokens, hidden_size]`.

    Args:
        states: `[num_tokens, T * hidden_size]`, taps side by side; last stride 1.
        fusion: `[num_layers, T]`, each layer's weights of the taps; None for one context of all layers, `states`.
        weight: `[hidden_size]`, of the norm.
        eps: the norm's epsilon.
    """
    num_tokens, width = states.shape[0], weight.shape[0]
    num_layers, taps = (1, 1) if fusion is None else fusion.shape
    if states.shape[1] != taps * width or states.stride(1) != 1:
        raise ValueError(
            f"states are {list(states.shape)} with strides {states.stride()}, not {taps} x {width} in rows"
        )
    out = states.new_empty(num_layers, num_tokens, width)
    if num_tokens:
        overlap = launches_overlap(states.device)
        context_norm_kernel[(num_tokens, num_layers)](
            states, weight if fusion is None else fusion, weight, out, eps, states.stride(0), num_tokens,
            WIDTH=width, BLOCK=triton.next_power_of_2(width), TAPS=taps, FUSED=fusion is not None, OVERLAP=overlap,
            num_warps=4, launch_pdl=overlap,
        )  # fmt: skip
    return out


@triton.jit
def context_kernel(
    p_kv, p_caches, p_slots, p_positions, p_cos_sin, p_weights, eps,
    stride_layer, stride_token, stride_value, stride_block, stride_head, stride_slot,
    HALF: tl.constexpr, PAGE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One layer, KV head and token; grid `(num_layers, num_kv_heads, num_tokens)`."""
    i_layer = tl.program_id(0)
    i_head = tl.program_id(1).to(tl.int64)
    i_token = tl.program_id(2).to(tl.int64)
    o_d = tl.arange(0, HALF)
    # All of this is older than the launch before this one, and is read while it drains.
    p_cache = tl.load(p_caches + i_layer).to(tl.pointer_type(p_kv.dtype.element_ty))
    slot = tl.load(p_slots + i_token).to(tl.int64)
    b_cos, b_sin = load_halves(p_cos_sin + tl.load(p_positions + i_token).to(tl.int64) * 2 * HALF, HALF)
    b_weight_low, b_weight_high = load_halves(p_weights + i_layer * 2 * HALF, HALF)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if slot < 0:
        return
    p_k = p_kv + i_layer.to(tl.int64) * stride_layer + i_token * stride_token + i_head * 2 * HALF
    b_low, b_high = norm_rope(p_k, b_weight_low, b_weight_high, b_cos, b_sin, eps, 0.0, HALF)
    p_slot = p_cache + (slot // PAGE) * stride_block + (slot % PAGE) * stride_slot + i_head * stride_head
    dtype = p_kv.dtype.element_ty
    tl.store(p_slot + o_d, b_low.to(dtype))
    tl.store(p_slot + HALF + o_d, b_high.to(dtype))
    o_v = tl.arange(0, 2 * HALF)
    tl.store(p_slot + 2 * HALF + o_v, tl.load(p_k + stride_value + o_v))


def addresses(caches: Sequence[torch.Tensor]) -> torch.Tensor:
    """Where each layer's cache begins, `[num_layers]`, on their device: what `store_context` takes for `caches`.

    Raises:
        ValueError: the caches differ in shape, strides or dtype.
    """
    kinds = {(tuple(cache.shape), cache.stride(), cache.dtype) for cache in caches}
    if len(kinds) != 1:
        raise ValueError(f"the draft's layers have caches of {len(kinds)} kinds, not one")
    return torch.tensor([cache.data_ptr() for cache in caches], dtype=torch.int64, device=caches[0].device)


def store_context(
    kv: torch.Tensor,
    first_cache: torch.Tensor,
    caches: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    weights: torch.Tensor,
    eps: float,
) -> None:
    """Normed and rotated keys and plain values of every layer into its pages.

    Args:
        kv: `[num_layers, num_tokens, 2, num_kv_heads, head_dim]`, projected; heads contiguous.
        first_cache: `[num_blocks, num_kv_heads, block_size, 2 * head_dim]`, of one layer; the others' are like it.
        caches: `addresses` of all layers' caches.
        slots: `[num_tokens]`, block * block_size + offset; a token below zero is padding and is not stored.
        positions: `[num_tokens]`.
        cos_sin: `[max_positions, head_dim]`, cosines in the first half.
        weights: `[num_layers, head_dim]`, of the key norms.
        eps: the norms' epsilon.
    """
    num_layers, num_tokens, _, num_kv_heads, head_dim = kv.shape
    check_cache("first_cache", first_cache, num_kv_heads, head_dim)
    if kv.stride()[3:] != (head_dim, 1) or kv.dtype != first_cache.dtype:
        raise ValueError(f"kv is {kv.dtype} with strides {kv.stride()}, for caches of {first_cache.dtype}")
    if cos_sin.shape[1] != head_dim or not cos_sin.is_contiguous() or not weights.is_contiguous():
        raise ValueError(f"cos_sin is {list(cos_sin.shape)} and weights {list(weights.shape)}, not in rows")
    if not num_tokens:
        return
    overlap = launches_overlap(kv.device)
    context_kernel[(num_layers, num_kv_heads, num_tokens)](
        kv, caches, slots, positions, cos_sin, weights, eps, *kv.stride()[:3], *first_cache.stride()[:3],
        HALF=head_dim // 2, PAGE=first_cache.shape[2], OVERLAP=overlap, num_warps=1, launch_pdl=overlap,
    )  # fmt: skip
