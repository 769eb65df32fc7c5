"""Block attention against one masked attention over all keys."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from plugin.training.draft.block_attention import block_attention

R, N, B, L, DIM = 2, 3, 4, 11, 8


def _masked(
    heads: int, tensors: list[torch.Tensor], mask: torch.Tensor, own: torch.Tensor | None = None
) -> torch.Tensor:
    """Context and all blocks' keys side by side, the mask written out slot by slot."""
    query, context_key, context_value, block_key, block_value = tensors
    key = torch.cat([context_key, block_key.flatten(1, 2)], dim=1)
    value = torch.cat([context_value, block_value.flatten(1, 2)], dim=1)
    visible = torch.zeros(R, N * B, L + N * B, dtype=torch.bool)
    for row in range(R):
        for slot in range(N * B):
            for column in range(L):
                seen = mask[row, slot // B]
                visible[row, slot, column] = (seen if mask.dim() == 3 else seen[slot % B])[column]
            for other in range(N * B):
                visible[row, slot, L + other] = other // B == slot // B and (
                    own is None or bool(own[row, slot // B, slot % B, other % B])
                )
    found = functional.scaled_dot_product_attention(
        query.flatten(1, 2).transpose(1, 2),
        key.repeat_interleave(heads // key.shape[2], dim=2).transpose(1, 2),
        value.repeat_interleave(heads // key.shape[2], dim=2).transpose(1, 2),
        attn_mask=visible[:, None],
    )
    return found.transpose(1, 2).unflatten(1, (N, B))


@pytest.mark.parametrize("by_slot", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 1), (4, 2), (2, 2)])
def test_values_and_gradients_are_those_of_masked_attention(heads: int, kv_heads: int, by_slot: bool) -> None:
    torch.manual_seed(0)
    shapes = [(R, N, B, heads, DIM), *[(R, L, kv_heads, DIM)] * 2, *[(R, N, B, kv_heads, DIM)] * 2]
    tensors = [torch.randn(shape, requires_grad=True) for shape in shapes]
    mask = torch.rand(R, N, B, L) < 0.5 if by_slot else torch.rand(R, N, L) < 0.5
    mask[0, 1] = False  # a block at a sample's very first token sees itself alone
    own = (torch.rand(R, N, B, B) < 0.5) | torch.eye(B, dtype=torch.bool) if by_slot else None
    found, wanted = block_attention(*tensors, mask, own), _masked(heads, tensors, mask, own)
    assert (found - wanted).abs().max() < 1e-6
    weights = torch.randn_like(found)
    gradients = [torch.autograd.grad((values * weights).sum(), tensors) for values in (found, wanted)]
    assert all((one - other).abs().max() < 1e-5 for one, other in zip(*gradients, strict=True))
    assert all(gradient.isfinite().all() for gradient in gradients[0])
