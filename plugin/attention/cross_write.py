"""Cross keys and values of all layers into their pages, as one GPU program: norm of the keys and store.

Layer by layer these are six launches a layer, all of which lie on the way to a request's first token. Slots are not
prepared by the host: a token knows its request's row and its place in the prompt, and the block table does the rest.

Runs on the CPU too, for tests, when `TRITON_INTERPRET=1` is set before the first import.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from plugin.attention.torch_paged import write_pages


@triton.jit
def cross_write_kernel(
    p_kv, p_k_weights, p_caches, p_rows, p_positions, p_table, eps,
    stride_kv, stride_table, stride_block, stride_head, stride_slot,
    NUM_KV_HEADS: tl.constexpr, BLOCK_H: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    PAGE: tl.constexpr,
):  # fmt: skip
    """One token in one layer; grid `(num_tokens, num_layers)`."""
    i_token = tl.program_id(0).to(tl.int64)
    i_layer = tl.program_id(1)
    row = tl.load(p_rows + i_token)
    if row < 0:
        return
    position = tl.load(p_positions + i_token)
    block = tl.load(p_table + row.to(tl.int64) * stride_table + position // PAGE).to(tl.int64)
    p_cache = tl.cast(tl.load(p_caches + i_layer), tl.pointer_type(p_kv.dtype.element_ty))
    p_cache = tl.multiple_of(p_cache, 16)
    o_head = tl.arange(0, BLOCK_H)[:, None]
    o_d = tl.arange(0, BLOCK_D)[None, :]
    m_kv = (o_head < NUM_KV_HEADS) & (o_d < HEAD_DIM)
    o_kv = i_layer * 2 * NUM_KV_HEADS * HEAD_DIM + o_head * HEAD_DIM + o_d
    b_k = tl.load(p_kv + i_token * stride_kv + o_kv, mask=m_kv, other=0.0).to(tl.float32)
    b_v = tl.load(p_kv + i_token * stride_kv + NUM_KV_HEADS * HEAD_DIM + o_kv, mask=m_kv, other=0.0)
    b_weight = tl.load(p_k_weights + i_layer * HEAD_DIM + o_d, mask=o_d < HEAD_DIM, other=0.0).to(tl.float32)
    b_scale = tl.rsqrt(tl.sum(b_k * b_k, 1) / HEAD_DIM + eps)
    b_k = b_k * b_scale[:, None] * (1.0 + b_weight)
    p_slot = p_cache + block * stride_block + (position % PAGE) * stride_slot + o_head * stride_head + o_d
    tl.store(p_slot, b_k.to(b_v.dtype), mask=m_kv)
    tl.store(p_slot + HEAD_DIM, b_v, mask=m_kv)


def cross_write(
    kv: torch.Tensor,
    k_weights: torch.Tensor,
    eps: float,
    cache_addresses: torch.Tensor,
    like: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
) -> None:
    """Norm the keys and store keys and values of every layer.

    Args:
        kv: `[num_tokens, num_layers * 2 * num_kv_heads * head_dim]`: keys, then values of the first layer, and so on.
        k_weights: `[num_layers, head_dim]`, the Gemma norms' w in `x / rms(x) * (1 + w)`.
        cache_addresses: `[num_layers]`, int64, where each layer's cache begins.
        like: one of those caches, `[num_blocks, num_kv_heads, block_size, 2 * head_dim]`; all have its strides.
        rows, positions: `[num_tokens]`, int32, the request's row of the block table and the place in its prompt. A
            token whose row is below zero is padding and is not stored.
        block_table: `[num_requests, max_blocks]`, int32.

    Raises:
        ValueError: a shape, stride or dtype that the program does not serve.
    """
    num_tokens, num_layers, num_kv_heads, head_dim = (
        kv.shape[0],
        k_weights.shape[0],
        like.shape[1],
        k_weights.shape[1],
    )
    if kv.shape[1] != num_layers * 2 * num_kv_heads * head_dim or kv.stride(1) != 1:
        raise ValueError(f"kv is {list(kv.shape)} with strides {kv.stride()}")
    if like.shape[3] != 2 * head_dim or like.stride(3) != 1 or like.dtype != kv.dtype:
        raise ValueError(f"the caches are {list(like.shape)} of {like.dtype} with strides {like.stride()}")
    if rows.shape != (num_tokens,) or positions.shape != (num_tokens,) or block_table.stride(1) != 1:
        raise ValueError(
            f"{list(rows.shape)} rows and {list(positions.shape)} positions for {num_tokens} tokens"
        )
    if num_tokens:
        cross_write_kernel[(num_tokens, num_layers)](
            kv, k_weights, cache_addresses, rows, positions, block_table, eps,
            kv.stride(0), block_table.stride(0), *like.stride()[:3],
            NUM_KV_HEADS=num_kv_heads, BLOCK_H=triton.next_power_of_2(num_kv_heads), HEAD_DIM=head_dim,
            BLOCK_D=triton.next_power_of_2(head_dim), PAGE=like.shape[2], num_warps=1,
        )  # fmt: skip


def naive_cross_write(
    kv: torch.Tensor,
    k_weights: torch.Tensor,
    eps: float,
    caches: Sequence[torch.Tensor],
    rows: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
) -> None:
    """The same, layer by layer in PyTorch: the reference of the tests."""
    page = caches[0].shape[2]
    slots = block_table[rows.clamp(min=0).long(), positions.long() // page].long() * page + positions % page
    slots = torch.where(rows < 0, -1, slots)
    layers = kv.view(kv.shape[0], len(caches), 2, caches[0].shape[1], -1)
    for i, cache in enumerate(caches):
        k = layers[:, i, 0].float()
        k = k * torch.rsqrt(k.pow(2).mean(-1, keepdim=True) + eps) * (1.0 + k_weights[i].float())
        write_pages(cache, slots, k.to(kv.dtype), layers[:, i, 1])
