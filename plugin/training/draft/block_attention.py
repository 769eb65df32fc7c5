"""Attention of blocks: every slot sees its block's context and its own block, and no other block.

With N blocks of B slots over L context columns, one masked attention over all keys would compute N*B scores a slot for
the blocks' own keys and throw all but B of them away; here they are never computed. The softmax runs over both kinds of
keys at once.
"""

from __future__ import annotations

import torch


def block_attention(
    query: torch.Tensor,
    context_key: torch.Tensor,
    context_value: torch.Tensor,
    block_key: torch.Tensor,
    block_value: torch.Tensor,
    mask: torch.Tensor,
    own_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attended values [R, N, B, heads, dim].

    `query` [R, N, B, heads, dim]; context keys and values [R, L, kv heads, dim], the blocks' own [R, N, B, kv heads,
    dim]; `mask` bool [R, N, L] or, by slot, [R, N, B, L] says which context columns are seen, `own_mask` bool,
    broadcasting to [R, N, B, B], which slots of its block a slot sees (all without it). Every slot
    must see one key. Scores have the precision of the inputs, the softmax is computed in float32.
    """
    rows, blocks, slots, heads, dim = query.shape
    kv_heads, length = context_key.shape[2], context_key.shape[1]
    group = heads // kv_heads
    grouped = (query * dim**-0.5).unflatten(3, (kv_heads, group))
    grouped = grouped.permute(0, 3, 1, 2, 4, 5).flatten(3, 4)  # [R, kv heads, N, B * group, dim]
    seen = grouped.flatten(2, 3) @ context_key.permute(0, 2, 3, 1)
    shown = mask[:, :, None] if mask.dim() == 3 else mask.repeat_interleave(group, dim=2)
    seen = seen.unflatten(2, (blocks, -1)).masked_fill(~shown[:, None], float("-inf"))
    own = grouped @ block_key.permute(0, 3, 1, 4, 2)
    if own_mask is not None:
        shown = own_mask.expand(rows, blocks, slots, slots).repeat_interleave(group, dim=2)
        own = own.masked_fill(~shown[:, None], float("-inf"))
    scores = torch.cat([seen, own], dim=-1)
    with torch.autocast(scores.device.type, enabled=False):
        shares = scores.softmax(dim=-1)
    context_shares, own_shares = shares.split([length, slots], dim=-1)
    values = (context_shares.flatten(2, 3) @ context_value.transpose(1, 2)).unflatten(2, (blocks, -1))
    values = values + own_shares @ block_value.permute(0, 3, 1, 2, 4)
    values = values.unflatten(3, (slots, -1)).permute(0, 2, 3, 1, 4, 5)
    return values.reshape(rows, blocks, slots, heads, dim)
