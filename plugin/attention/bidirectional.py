"""The encoder's attention: bidirectional over each prompt, without a cache, many prompts in one call."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F


def window_sides(window: int) -> tuple[int, int]:
    """Keys visible to the left and to the right of a query in a sliding encoder layer (the query itself not counted).

    transformers' `sliding_window_mask_function(is_causal=False)`: `0 <= q - k < (w + 1) // 2` or `0 < k - q < w // 2 +
    1`.
    """
    return (window + 1) // 2 - 1, window // 2


def window_mask(length: int, window: int, device: torch.device) -> torch.Tensor:
    """`[length, length]`, true where key j is visible to query i."""
    left, right = window_sides(window)
    position = torch.arange(length, device=device)
    distance = position[:, None] - position[None, :]
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
        mask = (
            None
            if window is None or min(window_sides(window)) >= length - 1
            else window_mask(length, window, q.device)
        )
        out = F.scaled_dot_product_attention(
            qs.transpose(0, 1)[None], ks.transpose(0, 1)[None], vs.transpose(0, 1)[None],
            attn_mask=mask, scale=scale, enable_gqa=True,
        )  # fmt: skip
        outputs.append(out[0].transpose(0, 1))
    return torch.cat(outputs)
