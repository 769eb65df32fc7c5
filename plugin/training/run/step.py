"""One pass over packed rows: verifier states, draft logits at the blocks, loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from plugin.training.draft.anchors import Blocks
from plugin.training.draft.losses import draft_loss
from plugin.training.draft.model import TrainableDraft
from plugin.training.seeds import seeded
from plugin.training.settings import DraftSettings
from plugin.training.verifier.extraction import Extractor
from plugin.training.verifier.packing import PackedRows, packed_states


@dataclass(frozen=True, slots=True)
class StepResult:
    """`terms`: loss terms, scalars; `finite` bool [samples]: whether the verifier's states are.

    `correct` bool [R, N, B], where it was asked for: slots where the draft's likeliest token is the verifier's.
    """

    terms: dict[str, torch.Tensor]
    finite: torch.Tensor
    correct: torch.Tensor | None


class BlockStep(nn.Module):
    """Forward pass of `draft` on rows whose verifier states come from `extractor`."""

    def __init__(self, draft: TrainableDraft, extractor: Extractor, settings: DraftSettings) -> None:
        super().__init__()
        if extractor.layer_ids != draft.config.aux_hidden_state_layer_ids:
            raise ValueError(
                f"aux_hidden_state_layer_ids: the draft reads {list(draft.config.aux_hidden_state_layer_ids)}, "
                f"the extractor taps {list(extractor.layer_ids)}"
            )
        self.draft, self.extractor, self.settings = draft, extractor, settings
        self.device = next(draft.parameters()).device
        if self.device.type == "cuda":
            for layer in draft.layers:  # of one kind: one program for all
                layer.compile(dynamic=True)

    def forward(
        self,
        rows: PackedRows,
        blocks: Blocks,
        count: int | None = None,
        noise_keys: Sequence[tuple[object, ...]] = (),
        judge: bool = False,
    ) -> StepResult:
        """Loss terms of `rows` at `blocks`, summed over counted slots and divided by `count` (theirs by default).

        Aux states get uniform noise drawn row by row at `noise_keys`, none without. With `judge` also which slots are
        right, which takes the verifier's logits over its whole vocabulary.
        """
        settings, draft = self.settings, self.draft
        rows, blocks = rows.to(self.device), blocks.to(self.device)
        found = packed_states(self.extractor, rows, settings.extractor_batch)
        aux = found.aux.float()
        if settings.noise and noise_keys:
            for row, key in enumerate(noise_keys):
                generator = seeded(*key, device=self.device)
                noise = torch.rand(aux.shape[1:], generator=generator, device=self.device)
                aux[row] += (2 * noise - 1) * settings.noise
        with torch.autocast(self.device.type, torch.bfloat16, enabled=settings.precision == "bfloat16"):
            hidden = draft(aux, rows.documents, rows.positions, blocks)
            logits, confidence = draft.draft_logits(hidden, blocks)
        # A slot's teacher stands one column before its token.
        config = draft.config
        slots = torch.arange(config.block_size, device=self.device)
        before = (
            (blocks.columns[:, :, None] + slots + config.ahead - 1)
            .clamp(0, rows.tokens.shape[1] - 1)
            .flatten(1)
        )
        number = torch.arange(len(rows.tokens), device=self.device)[:, None]
        shape = blocks.inputs.shape
        teacher = self.extractor.logits(found.states[number, before], draft.t2d).unflatten(1, shape[1:])
        terms = draft_loss(
            config.family, logits.float(), None if confidence is None else confidence.float(),
            teacher.float(), blocks.loss_mask, settings.loss, count, config.first_slot,
        )  # fmt: skip
        correct = None
        if judge:
            wanted = self.extractor.greedy_tokens(found.states)[number, before].view(shape)
            correct = draft.to_target(logits.argmax(dim=-1)) == wanted
        return StepResult(terms, found.finite, correct)
