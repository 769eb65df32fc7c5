"""The encoder's attention: bidirectional over each prompt, without a cache, many prompts in one call."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

QUERY_CHUNK = 1024
"""Queries of a windowed layer that are attended at once."""


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
    lengths: Sequence[int],
    window: int | None,
    scale: float,
) -> torch.Tensor:
    """Attention of each prompt to itself.

    Args:
        q: `[sum(lengths), num_heads, head_dim]`; k, v: `[sum(lengths), num_kv_heads, head_dim]`, prompts one after
            another.
        lengths: tokens of each prompt, on the host.
        window: None for full attention, else the model's `sliding_window`.
        scale: factor on the scores.

    Returns:
        `[sum(lengths), num_heads, head_dim]`.
    """
    outputs = []
    for qs, ks, vs in zip(
        q.split(list(lengths)), k.split(list(lengths)), v.split(list(lengths)), strict=True
    ):
        length = qs.shape[0]
        # A window that reaches every key masks nothing: leave the mask out so that the fused kernel can run.
        if window is None or min(window_sides(window)) >= length - 1:
            outputs.append(_attend(qs, ks, vs, None, scale))
        else:
            outputs.append(_windowed(qs, ks, vs, window, scale))
    return torch.cat(outputs)


def _windowed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int, scale: float) -> torch.Tensor:
    """Chunks of queries over the keys that some of them see, so that memory grows with the length, not its square."""
    length = q.shape[0]
    left, right = window_sides(window)
    outputs = []
    for start in range(0, length, QUERY_CHUNK):
        end = min(start + QUERY_CHUNK, length)
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
