"""Anchors and blocks: where a draft is asked to guess during training, and what it may see there.

A block of B slots stands at an anchor: slot 0 holds the anchor, the newest accepted token, at decoder position p; slots
1 ... B-1 hold the mask token at p+1 ... p+B-1 and are to predict the tokens of their own positions. Serving fills the
same slots in the same way, so what is learned here is what is used there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from plugin.training.device import to_device


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of a batch of rows; R rows, N anchors a row, B slots a block.

    `columns` [R, N]: the anchor's column in its row. `positions` [R, N, B] and `documents` [R, N]: decoder positions
    of the slots and the sample that the block belongs to. `inputs` [R, N, B]: the anchor token, then mask tokens.
    `targets` [R, N, B]: the true token of every slot. `loss_mask` [R, N, B]: slots that count (never slot 0).
    """

    columns: torch.Tensor
    positions: torch.Tensor
    documents: torch.Tensor
    inputs: torch.Tensor
    targets: torch.Tensor
    loss_mask: torch.Tensor

    def part(self, first: int, count: int) -> Blocks:
        """The blocks of rows `first` ... `first + count - 1`."""
        return Blocks(*(getattr(self, name)[first : first + count] for name in self.__slots__))

    def to(self, device: torch.device) -> Blocks:
        """The same blocks on `device`."""
        return Blocks(*(to_device(getattr(self, name), device) for name in self.__slots__))


def sample_anchors(
    loss_mask: torch.Tensor,
    documents: torch.Tensor,
    count: int,
    block_size: int,
    generator: torch.Generator,
    whole_blocks: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random anchors, without replacement: columns and their validity, both [rows, anchors].

    `loss_mask` and `documents` are [rows, length]. A column can be an anchor when it and its successor are response
    tokens of one sample; with `whole_blocks` the whole block must lie inside the sample (the published recipe, which
    never sees a response's end). Rows with fewer such columns than `count` get invalid anchors.
    """
    eligible = loss_mask.clone()
    reach = block_size - 1 if whole_blocks else 1
    ahead = torch.zeros_like(eligible)
    if reach < eligible.shape[1]:
        same = documents[:, reach:] == documents[:, :-reach]
        ahead[:, : eligible.shape[1] - reach] = loss_mask[:, reach:] & same
    eligible &= ahead
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
) -> Blocks:
    """The blocks at anchor `columns` [R, N] of rows `tokens`, `documents`, `positions` [R, length]."""
    slots = torch.arange(block_size, device=tokens.device)
    wanted = columns[:, :, None] + slots  # [R, N, B]
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
        loss_mask=valid[:, :, None] & inside & same & (slots > 0),
    )


def context_mask(blocks: Blocks, documents: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Which context columns a block sees: bool [R, N, length], those of its sample strictly before its anchor."""
    same = documents[:, None, :] == blocks.documents[:, :, None]
    before = positions[:, None, :] < blocks.positions[:, :, :1]
    return same & before
