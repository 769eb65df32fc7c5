"""Anchors and blocks: where a draft is asked to guess during training, and what it may see there.

A block of B slots stands at an anchor: slot 0 holds the anchor, the newest accepted token, at decoder position p; slots
1 ... B-1 hold the mask token at p+1 ... p+B-1 and are to predict the tokens of their own positions. A draft that
samples from the anchor predicts one token further in every slot, slot 0 included. Serving fills the same slots in the
same way, so what is learned here is what is used there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch

from plugin.training.device import to_device


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of a batch of rows; R rows, N anchors a row, B slots a block.

    `columns` [R, N]: the anchor's column in its row. `positions` [R, N, B] and `documents` [R, N]: decoder positions
    of the slots and the sample that the block belongs to. `inputs` [R, N, B]: the anchor token, then mask tokens.
    `targets` [R, N, B]: the token that every slot is to predict. `loss_mask` [R, N, B]: slots that count. `sizes` [R,
    N]: how many slots a block has, None where all have B.
    """

    columns: torch.Tensor
    positions: torch.Tensor
    documents: torch.Tensor
    inputs: torch.Tensor
    targets: torch.Tensor
    loss_mask: torch.Tensor
    sizes: torch.Tensor | None = None

    def part(self, first: int, count: int) -> Blocks:
        """The blocks of rows `first` ... `first + count - 1`."""
        return self._each(lambda tensor: tensor[first : first + count])

    def to(self, device: torch.device) -> Blocks:
        """The same blocks on `device`."""
        return self._each(lambda tensor: to_device(tensor, device))

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Blocks:
        found = [getattr(self, part.name) for part in fields(self)]
        return Blocks(*(None if tensor is None else change(tensor) for tensor in found))

    def previous(self) -> torch.Tensor:
        """[R, N, B]: the true token before the one that a slot is to predict; the anchor's own slot has the anchor."""
        return torch.cat([self.inputs[..., :1], self.targets[..., :-1]], dim=-1)


def sample_anchors(
    loss_mask: torch.Tensor,
    documents: torch.Tensor,
    count: int,
    block_size: int,
    generator: torch.Generator,
    whole_blocks: bool = False,
    ahead: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random anchors, without replacement: columns and their validity, both [rows, anchors].

    `loss_mask` and `documents` are [rows, length]. A column can be an anchor when it and its successor are response
    tokens of one sample; with `whole_blocks` the whole block must lie inside the sample (the published recipe, which
    never sees a response's end). `ahead` as in `make_blocks`. Rows with fewer such columns than `count` get invalid
    anchors.
    """
    eligible = loss_mask.clone()
    reach = block_size - 1 + ahead if whole_blocks else 1
    followed = torch.zeros_like(eligible)
    if reach < eligible.shape[1]:
        same = documents[:, reach:] == documents[:, :-reach]
        followed[:, : eligible.shape[1] - reach] = loss_mask[:, reach:] & same
    eligible &= followed
    scores = torch.rand(eligible.shape, generator=generator).to(eligible.device)
    scores = torch.where(eligible, scores, -1.0)
    best = scores.topk(min(count, eligible.shape[1]), dim=1)
    return best.indices, best.values >= 0


def all_anchors(loss_mask: torch.Tensor, documents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Every possible anchor in column order: columns and validity, both [rows, length - 1]."""
    columns = torch.arange(loss_mask.shape[1] - 1, device=loss_mask.device).expand(loss_mask.shape[0], -1)
    valid = loss_mask[:, :-1] & loss_mask[:, 1:] & (documents[:, 1:] == documents[:, :-1])
    return columns, valid


def make_blocks(
    tokens: torch.Tensor,
    documents: torch.Tensor,
    positions: torch.Tensor,
    columns: torch.Tensor,
    valid: torch.Tensor,
    block_size: int,
    mask_token_id: int,
    ahead: int = 0,
) -> Blocks:
    """The blocks at anchor `columns` [R, N] of rows `tokens`, `documents`, `positions` [R, length].

    A slot is to predict the token `ahead` of its own position: 0, or 1 where a draft samples from the anchor.
    """
    slots = torch.arange(block_size, device=tokens.device)
    wanted = columns[:, :, None] + slots + ahead  # [R, N, B]
    inside = wanted < tokens.shape[1]
    flat = wanted.clamp(max=tokens.shape[1] - 1).flatten(1)
    targets = tokens.gather(1, flat).view_as(wanted)
    own = documents.gather(1, columns)
    same = documents.gather(1, flat).view_as(wanted) == own[:, :, None]
    inputs = torch.full_like(wanted, mask_token_id)
    inputs[:, :, 0] = tokens.gather(1, columns)
    return Blocks(
        columns=columns,
        positions=positions.gather(1, columns)[:, :, None] + slots,
        documents=own,
        inputs=inputs,
        targets=targets,
        loss_mask=valid[:, :, None] & inside & same & (slots + ahead > 0),
    )


def shortened(blocks: Blocks, share: float, ahead: int, generator: torch.Generator) -> Blocks:
    """`blocks` of which a random `share` has fewer slots, each number from one that predicts on alike.

    What vLLM's own drafting makes of a block at a smaller K: the slots behind are not there.
    """
    rows, count, size = blocks.inputs.shape
    shortest = 2 - ahead
    drawn = torch.rand(2, rows, count, generator=generator)
    sizes = shortest + (drawn[1] * (size - shortest)).long()
    sizes = torch.where(drawn[0] < share, sizes, size)
    there = torch.arange(size) < sizes[..., None]
    return replace(blocks, sizes=sizes, loss_mask=blocks.loss_mask & there)


def context_mask(
    blocks: Blocks, documents: torch.Tensor, positions: torch.Tensor, window: int | None = None
) -> torch.Tensor:
    """Which context columns are seen: those of the block's sample strictly before its anchor.

    Bool [R, N, length]; with a `window`, in tokens, that of each slot, [R, N, B, length], its own position included.
    """
    same = documents[:, None, :] == blocks.documents[:, :, None]
    before = positions[:, None, :] < blocks.positions[:, :, :1]
    if window is None:
        return same & before
    near = positions[:, None, None, :] > blocks.positions[..., None] - window
    return (same & before)[:, :, None] & near


def own_mask(blocks: Blocks, window: int | None = None, causal: bool = False) -> torch.Tensor | None:
    """Which slots of its own block a slot sees: bool, broadcasting to [R, N, B, B]; None where all see all."""
    slots = torch.arange(blocks.inputs.shape[-1], device=blocks.inputs.device)
    back = slots[:, None] - slots
    seen = back >= 0 if causal else None
    if window is not None and window < len(slots):
        near = back.abs() < window
        seen = near if seen is None else seen & near
    if blocks.sizes is None:
        return seen
    # A slot that is not there sees itself, so that it sees something; nobody sees it.
    there = (slots < blocks.sizes[..., None])[:, :, None, :] | (back == 0)
    return there if seen is None else there & seen
