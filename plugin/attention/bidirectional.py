"""The encoder's attention: bidirectional over each prompt, without a cache, many prompts in one call."""

import functools
import itertools

import torch
import torch.nn.functional as F

QUERY_CHUNK, LEAST_CHUNK = 1024, 128
"""Queries of a windowed layer that are attended at once: twice its window, within these bounds."""


def window_sides(window: int) -> tuple[int, int]:
    """Keys visible to the left and to the right of a query in a sliding encoder layer (the query itself not counted).

    transformers' `sliding_window_mask_function(is_causal=False)`: `0 <= q - k < (w + 1) // 2` or `0 < k - q < w // 2 +
    1`.
    """
    return (window + 1) // 2 - 1, window // 2


def window_mask(queries: range, keys: range, window: int, device: torch.device) -> torch.Tensor:
    """`[len(queries), len(keys)]`, true where the key at one position is visible to the query at the other."""
    left, right = window_sides(window)
    query = torch.arange(queries.start, queries.stop, device=device)
    key = torch.arange(keys.start, keys.stop, device=device)
    distance = query[:, None] - key[None, :]
    return (distance <= left) & (-distance <= right)


def bidirectional_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_len: int,
    window: int | None,
    scale: float,
) -> torch.Tensor:
    """Attention of each prompt to itself.

    On a GPU this is one launch whose grid depends on host numbers alone: it can be captured in a CUDA graph and
    replayed with other lengths.

    Args:
        q: `[num_tokens, num_heads, head_dim]`; k, v: `[num_tokens, num_kv_heads, head_dim]`, prompts one after another.
        cu_seqlens: `[num_prompts + 1]`, int32, where each prompt begins and the last ends.
        max_len: upper bound of a prompt's tokens, on the host.
        window: None for full attention, else the model's `sliding_window`.
        scale: factor on the scores.

    Returns:
        `[num_tokens, num_heads, head_dim]`.
    """
    if q.device.type == "cuda":
        return _varlen(q, k, v, cu_seqlens, max_len, window, scale)
    return rows_attention(q, k, v, slice(0, len(q)), window, scale, cu_seqlens)


def rows_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    rows: slice,
    window: int | None,
    scale: float,
    cu_seqlens: torch.Tensor,
) -> torch.Tensor:
    """Some queries over all keys of their own prompts.

    Args:
        q: `[num_tokens, num_heads, head_dim]`; k, v: `[num_tokens, num_kv_heads, head_dim]`, prompts one after another.
        rows: those of `q` to attend.
        window: None for full attention, else the model's `sliding_window`, on the CPU only.
        scale: factor on the scores.
        cu_seqlens: `[num_prompts + 1]`, int32, where each prompt begins and the last ends.

    Returns:
        `[num_rows, num_heads, head_dim]`.
    """
    if q.device.type != "cuda":
        bounds = itertools.pairwise(cu_seqlens.tolist())
        own = [(slice(a, b), max(a, rows.start) - a, min(b, rows.stop) - a) for a, b in bounds]
        return torch.cat(
            [
                _rows_of_one(q[all_], k[all_], v[all_], slice(first, end), window, scale)
                for all_, first, end in own
                if first < end
            ]
        )
    if window is not None:
        raise ValueError("a windowed layer's attention is not parted on a GPU")
    q = q[rows]
    starts = (cu_seqlens - rows.start).clamp(0, len(q))
    if q.dtype == torch.float32:
        from plugin.attention.bidirectional_kernel import attend_prompts

        return attend_prompts(q, k, v, starts, len(q), None, scale, cu_seqlens)
    return _flash(q, k, v, starts, cu_seqlens, len(q), len(k), None, scale)


def _rows_of_one(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: slice, window: int | None, scale: float
) -> torch.Tensor:
    """Some queries of a prompt on the CPU."""
    # A window that reaches every key masks nothing: leave the mask out so that the fused kernel can run.
    if window is None or min(window_sides(window)) >= len(q) - 1:
        return _attend(q[rows], k, v, None, scale)
    return _windowed(q, k, v, rows, window, scale)


def _varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_len: int,
    window: int | None,
    scale: float,
) -> torch.Tensor:
    """FlashAttention over all prompts, or the Triton kernel where it has no float32."""
    sides = None if window is None else window_sides(window)
    if q.dtype == torch.float32:
        from plugin.attention.bidirectional_kernel import attend_prompts

        return attend_prompts(q, k, v, cu_seqlens, max_len, sides, scale)
    return _flash(q, k, v, cu_seqlens, cu_seqlens, max_len, max_len, sides, scale)


def _flash(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    rows: torch.Tensor,
    keys: torch.Tensor,
    max_rows: int,
    max_keys: int,
    sides: tuple[int, int] | None,
    scale: float,
) -> torch.Tensor:
    """FlashAttention; `rows` and `keys`, `[num_prompts + 1]`, are where each prompt's queries and keys begin."""
    from vllm.v1.attention.backends.fa_utils import flash_attn_varlen_func

    out: torch.Tensor = flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q=rows,
        cu_seqlens_k=keys,
        max_seqlen_q=max_rows,
        max_seqlen_k=max_keys,
        softmax_scale=scale,
        causal=False,
        window_size=None if sides is None else list(sides),
        # Unsplit, so that a prompt's result does not depend on what it is padded to.
        num_splits=1,
        fa_version=_flash_version(q.shape[-1]),
    )
    return out


@functools.cache
def _flash_version(head_dim: int) -> int:
    """FlashAttention's major version on this device: 3 on Hopper."""
    from vllm.v1.attention.backends.fa_utils import get_flash_attn_version

    version = get_flash_attn_version(head_size=head_dim)
    if version is None:
        raise RuntimeError(f"FlashAttention does not serve heads of {head_dim} on this device")
    return int(version)


def _windowed(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: slice, window: int, scale: float
) -> torch.Tensor:
    """Chunks of queries over the keys that some of them see, so that memory grows with the length, not its square."""
    length = q.shape[0]
    left, right = window_sides(window)
    chunk = min(QUERY_CHUNK, max(LEAST_CHUNK, 2 * window))
    outputs = []
    for start in range(rows.start, rows.stop, chunk):
        end = min(start + chunk, rows.stop)
        first, last = max(0, start - left), min(length, end + right)
        mask = window_mask(range(start, end), range(first, last), window, q.device)
        outputs.append(_attend(q[start:end], k[first:last], v[first:last], mask, scale))
    return torch.cat(outputs)


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)
    return out[0].transpose(0, 1)
