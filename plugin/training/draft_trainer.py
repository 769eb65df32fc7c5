"""Training a draft against its frozen verifier: one process, states extracted as they are needed."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from plugin.training.anchors import all_anchors, make_blocks, sample_anchors
from plugin.training.draft_model import DraftModel
from plugin.training.extraction import Extractor
from plugin.training.losses import LossSettings, draft_loss
from plugin.training.metrics import Acceptance, Tally, leading_matches
from plugin.training.samples import Batch, Sample, batches, collate, length_batches
from plugin.training.schedule import learning_rate

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DraftSettings:
    """How a draft is trained; the defaults are the published recipe but for the number of epochs.

    `noise` is the half-width of the uniform noise added to the aux states, `whole_blocks` keeps anchors away from a
    response's last block.
    """

    epochs: int = 6
    batch_size: int = 512
    max_anchors: int = 8
    peak_rate: float = 6e-4
    warmup: float = 0.01
    weight_decay: float = 0.01
    clip: float = 1.0
    noise: float = 0.05
    whole_blocks: bool = False
    seed: int = 42
    loss: LossSettings = field(default_factory=LossSettings)


@dataclass(frozen=True, slots=True)
class TrainingState:
    """Where a run stands: epochs and steps done."""

    epoch: int
    local_step: int
    global_step: int

    def after(self, earlier: TrainingState) -> TrainingState:
        """This state as that of a run which went on from `earlier`."""
        return TrainingState(
            self.epoch + earlier.epoch + 1, self.local_step, self.global_step + earlier.global_step
        )


class DraftTrainer:
    """Trains `draft` on samples whose verifier states come from `extractor`."""

    def __init__(
        self, draft: DraftModel, extractor: Extractor, settings: DraftSettings, pad_id: int, start_id: int
    ) -> None:
        if extractor.layer_ids != draft.config.aux_hidden_state_layer_ids:
            raise ValueError(
                f"aux_hidden_state_layer_ids: the draft reads {list(draft.config.aux_hidden_state_layer_ids)}, "
                f"the extractor taps {list(extractor.layer_ids)}"
            )
        self.draft, self.extractor, self.settings = draft, extractor, settings
        self.pad_id, self.start_id = pad_id, start_id
        self.device = next(draft.parameters()).device
        self.generator = torch.Generator().manual_seed(settings.seed)

    def train(
        self, train: Sequence[Sample], validation: Sequence[Sample]
    ) -> tuple[TrainingState, dict[str, float]]:
        """Trains for all epochs; the final state and the last epoch's validation metrics (empty without a set)."""
        settings = self.settings
        trained = [parameter for parameter in self.draft.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=settings.peak_rate, weight_decay=settings.weight_decay)
        steps = settings.epochs * math.ceil(len(train) / settings.batch_size)
        state, metrics = TrainingState(0, 0, 0), {}
        started = time.perf_counter()
        step = 0
        for epoch in range(settings.epochs):
            self.draft.train()
            for rows in length_batches(train, settings.batch_size, settings.seed, epoch):
                for options in optimizer.param_groups:
                    options["lr"] = learning_rate(step, steps, settings.peak_rate, settings.warmup, "linear")
                loss = self.step(self._collate([train[row] for row in rows]))["loss"]
                loss.backward()
                torch.nn.utils.clip_grad_norm_(trained, settings.clip, error_if_nonfinite=True)
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                if step % 200 == 0 or step == steps:
                    logger.info(
                        "%s step %d/%d loss %.4f, %.0f s",
                        self.draft.config.family, step, steps, loss.item(), time.perf_counter() - started,
                    )  # fmt: skip
            state = TrainingState(epoch, step - epoch * (steps // settings.epochs), step)
            if validation:
                metrics = self.evaluate(validation)
                logger.info("epoch %d: %s", epoch, {name: round(value, 4) for name, value in metrics.items()})
        return state, metrics

    def _collate(self, group: Sequence[Sample]) -> Batch:
        return collate(group, self.pad_id, self.start_id).to(self.device)

    def step(
        self, batch: Batch, tally: Tally | None = None, generator: torch.Generator | None = None
    ) -> dict[str, torch.Tensor]:
        """Loss terms of one batch at random anchors; in training mode with noise. `tally` receives the accuracies.

        Anchors come from `generator`, or from the training run's own.
        """
        settings, draft = self.settings, self.draft
        states = self.extractor(batch.prompts, batch.prompt_mask, batch.tokens)
        aux = states.aux
        if draft.training and settings.noise:
            aux = aux + (2 * torch.rand_like(aux) - 1) * settings.noise
        columns, valid = sample_anchors(
            batch.loss_mask, batch.documents, settings.max_anchors, draft.config.block_size,
            generator or self.generator,
            settings.whole_blocks,
        )  # fmt: skip
        blocks = make_blocks(
            batch.tokens, batch.documents, batch.positions, columns, valid, draft.config.block_size,
            draft.config.mask_token_id,
        )  # fmt: skip
        hidden = draft(aux, batch.documents, batch.positions, blocks)
        logits, confidence = draft.draft_logits(hidden, blocks)
        full = _teacher(states.logits, blocks.columns, draft.config.block_size)
        terms = draft_loss(
            draft.config.family, logits, confidence, full[..., draft.t2d], blocks.loss_mask, settings.loss
        )
        if tally is not None:
            right = draft.to_target(logits.argmax(dim=-1)) == full.argmax(dim=-1)
            tally.add({name: value.item() for name, value in terms.items()}, right, blocks.loss_mask)
        return terms

    @torch.no_grad()
    def evaluate(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Losses and teacher-forced accuracies over `samples`, under the names of val_metrics.json."""
        self.draft.eval()
        tally = Tally(self.draft.config.block_size)
        # A generator of its own: validating must not change the training run, and every epoch scores the same anchors.
        generator = torch.Generator().manual_seed(self.settings.seed)
        for group in batches(samples, self.settings.batch_size, range(len(samples))):
            self.step(self._collate(group), tally, generator)
        return tally.metrics()

    @torch.no_grad()
    def acceptance(self, samples: Sequence[Sample], draft_length: int) -> Acceptance:
        """Acceptance at K = `draft_length` as greedy serving would count it, one request at a time.

        `samples` hold the verifier's own greedy responses. Serving is walked through: from an anchor on to the token
        after its leading matches, until the response's last token is the anchor or is accepted.
        """
        self.draft.eval()
        runs: list[int] = []
        for group in batches(samples, self.settings.batch_size, range(len(samples))):
            batch = self._collate(group)
            matches = self._leading_matches(batch, draft_length)
            for row, sample in enumerate(group):
                column, last = 1, len(sample.response)
                while column < last:
                    runs.append(int(matches[row, column]))
                    column += 1 + runs[-1]
        return Acceptance.from_runs(torch.tensor(runs), draft_length)

    def _leading_matches(self, batch: Batch, draft_length: int) -> torch.Tensor:
        """[rows, length - 1]: leading matches of a block at every column. Slots beyond K are masks, as in serving."""
        config = self.draft.config
        states = self.extractor(batch.prompts, batch.prompt_mask, batch.tokens)
        columns, valid = all_anchors(batch.loss_mask, batch.documents)
        found = []
        for part in range(0, columns.shape[1], 16):
            chosen = slice(part, part + 16)
            blocks = make_blocks(
                batch.tokens, batch.documents, batch.positions, columns[:, chosen], valid[:, chosen],
                draft_length + 1, config.mask_token_id,
            )  # fmt: skip
            hidden = self.draft(states.aux, batch.documents, batch.positions, blocks)
            logits, _ = self.draft.draft_logits(hidden, blocks)
            right = (self.draft.to_target(logits.argmax(dim=-1)) == blocks.targets) & blocks.loss_mask
            found.append(leading_matches(right[..., 1:]))
        return torch.cat(found, dim=1).cpu()


def _teacher(logits: torch.Tensor, columns: torch.Tensor, block_size: int) -> torch.Tensor:
    """[R, N, B, vocabulary]: for each slot the verifier's logits of its token, which stand one column before it."""
    slots = torch.arange(block_size, device=columns.device)
    wanted = (columns[:, :, None] + slots - 1).clamp(0, logits.shape[1] - 1)
    rows: Any = torch.arange(logits.shape[0], device=columns.device)[:, None, None]
    return logits[rows, wanted]
