"""Training a draft against its frozen verifier: optimizer steps in an order that seed and step alone decide.

Nothing random outlives a step: the order of an epoch, the anchors and the noise are functions of seed, epoch and step.
Weights, optimizer and the number of steps done are therefore all that a run needs to go on exactly where it stood.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from plugin.training.data.samples import Sample
from plugin.training.draft.anchors import Blocks, make_blocks, sample_anchors
from plugin.training.draft.model import TrainableDraft
from plugin.training.run.schedule import learning_rate
from plugin.training.run.step import BlockStep
from plugin.training.seeds import seeded
from plugin.training.settings import DraftSettings
from plugin.training.verifier.extraction import Extractor
from plugin.training.verifier.packing import PackedRows, epoch_rows, packed_rows

logger = logging.getLogger(__name__)

_NAMED_SAMPLES = 8


class NotFinite(FloatingPointError):
    """A loss, a gradient or the verifier's states are infinite or NaN; one line naming step and samples."""


@dataclass(frozen=True, slots=True)
class TrainingState:
    """Where a run stands: the epoch (from 0) it is in, steps done in it, and steps done in all."""

    epoch: int
    local_step: int
    global_step: int


@dataclass(frozen=True, slots=True)
class StepReport:
    """One optimizer step. The tensors are on the training device, so that reading them can wait.

    `loss` and `gradient_norm` (before clipping) are scalars, `finite` bool [samples] tells of the verifier's states,
    `tokens` counts the decoder tokens, `ids` the samples.
    """

    number: int
    rate: float
    loss: torch.Tensor
    gradient_norm: torch.Tensor
    finite: torch.Tensor
    tokens: int
    ids: tuple[str, ...]


class DraftTrainer:
    """Trains `draft` on `samples` whose verifier states come from `extractor`.

    `epoch_steps` are the optimizer steps of every epoch, `state` is where training stands. Raises `ValueError` when the
    extractor taps other layers than the draft reads, or there are no samples.
    """

    def __init__(
        self,
        draft: TrainableDraft,
        extractor: Extractor,
        settings: DraftSettings,
        samples: Sequence[Sample],
    ) -> None:
        if not samples:
            raise ValueError("samples: none given, nothing to train on")
        self.draft, self.settings, self.samples = draft, settings, samples
        self.extractor, self.block_step = extractor, BlockStep(draft, extractor, settings)
        self.lengths = [1 + len(sample.response) for sample in samples]
        self.epoch_steps = [
            math.ceil(len(self._epoch_rows(epoch)) / settings.step_rows) for epoch in range(settings.epochs)
        ]
        self.total_steps = sum(self.epoch_steps)
        self.state = TrainingState(0, 0, 0)
        self.trained = {
            name: parameter for name, parameter in draft.named_parameters() if parameter.requires_grad
        }
        self.optimizer = torch.optim.AdamW(
            self.trained.items(),
            lr=settings.peak_rate,
            weight_decay=settings.weight_decay,
            fused=next(draft.parameters()).is_cuda,
        )
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self._share_of_peak)

    def _share_of_peak(self, step: int) -> float:
        return learning_rate(step, self.total_steps, 1.0, self.settings.warmup, "linear")

    def _epoch_rows(self, epoch: int) -> list[list[int]]:
        return epoch_rows(self.lengths, self.settings.total_length, self.settings.seed, epoch)

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def done(self) -> bool:
        """Whether every epoch is trained."""
        return self.state.epoch >= self.settings.epochs

    def go_on(self, state: TrainingState) -> None:
        """Stands at `state`; the learning rates are those of the steps that are left after it.

        `state.epoch` may be one past the last, then nothing is left.
        """
        left = sum(self.epoch_steps[state.epoch :]) - state.local_step
        self.state, self.total_steps = state, state.global_step + max(0, left)
        self.scheduler.last_epoch = state.global_step
        rate = self.settings.peak_rate * self._share_of_peak(state.global_step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.scheduler._last_lr = [rate]

    def steps(self) -> Iterator[StepReport]:
        """Takes the steps that are left of the current epoch, one for each item; `state` is up to date at each."""
        rows, size = self._epoch_rows(self.state.epoch), self.settings.step_rows
        while self.state.local_step < self.epoch_steps[self.state.epoch]:
            first = self.state.local_step * size
            self.draft.train()
            report = self.take([[self.samples[index] for index in row] for row in rows[first : first + size]])
            state = self.state
            self.state = TrainingState(state.epoch, state.local_step + 1, state.global_step + 1)
            yield report

    def next_epoch(self) -> None:
        """Stands at the start of the epoch after the current one."""
        self.state = TrainingState(self.state.epoch + 1, 0, self.state.global_step)

    def take(self, groups: Sequence[Sequence[Sample]]) -> StepReport:
        """One optimizer step on packed rows of these samples, in micro-batches whose gradients add up.

        The anchors of all of them are drawn first, and every micro-batch is weighted by its share of their counted
        slots. Without any counted slot the loss is 0 and the weights stay as they are.
        """
        settings, rate = self.settings, self.rate
        rows = packed_rows(groups, self.extractor.pad_id, self.extractor.start_id)
        blocks = self.blocks(rows, settings.seed, self.state.global_step, "anchors")
        count = int(blocks.loss_mask.sum())
        device = self.block_step.device
        loss = torch.zeros((), device=device)
        norm = torch.zeros((), device=device)
        finite = []
        if count:
            for first in range(0, len(groups), settings.rows):
                part = rows.part(first, settings.rows)
                noise_keys = [
                    (settings.seed, self.state.global_step, "noise", first + row)
                    for row in range(len(part.tokens))
                ]
                result = self.block_step(
                    part, blocks.part(first, settings.rows), count, noise_keys=noise_keys
                )
                result.terms["loss"].backward()
                loss += result.terms["loss"].detach()
                finite.append(result.finite)
            norm = torch.nn.utils.clip_grad_norm_(self.trained.values(), settings.clip).detach()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        with warnings.catch_warnings():
            # A first step without counted slots moves the rate, not the optimizer; torch suspects a mistake there.
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            self.scheduler.step()
        return StepReport(
            number=self.state.global_step + 1,
            rate=rate,
            loss=loss,
            gradient_norm=norm,
            finite=torch.cat(finite) if finite else torch.ones(len(rows.samples), dtype=torch.bool),
            tokens=sum(1 + len(sample.response) for sample in rows.samples),
            ids=rows.ids,
        )

    def blocks(self, rows: PackedRows, *key: object) -> Blocks:
        """Blocks at random anchors of `rows`, drawn by `key`; columns where no row has an anchor are left out."""
        config = self.draft.config
        columns, valid = sample_anchors(
            rows.loss_mask, rows.documents, self.settings.max_anchors, config.block_size, seeded(*key),
            self.settings.whole_blocks,
        )  # fmt: skip
        most = max(1, int(valid.sum(dim=1).max()))
        return make_blocks(
            rows.tokens, rows.documents, rows.positions, columns[:, :most], valid[:, :most],
            config.block_size, config.mask_token_id,
        )  # fmt: skip


def check_finite(reports: Sequence[StepReport]) -> list[float]:
    """The reports' losses; waits for the device. Raises `NotFinite` for the first step that went wrong."""
    values = torch.stack([torch.stack([report.loss, report.gradient_norm]) for report in reports]).tolist()
    for report, (loss, norm) in zip(reports, values, strict=True):
        wrong = [
            name for name, value in (("the loss", loss), ("the gradient", norm)) if not math.isfinite(value)
        ]
        bad = [name for name, good in zip(report.ids, report.finite.tolist(), strict=True) if not good]
        if bad:
            raise NotFinite(f"step {report.number}: the verifier's states are not finite on {_listed(bad)}")
        if wrong:
            raise NotFinite(
                f"step {report.number}: {' and '.join(wrong)} not finite; samples {_listed(report.ids)}"
            )
    return [loss for loss, _ in values]


def _listed(ids: Sequence[str]) -> str:
    named = ", ".join(name or "(unnamed)" for name in ids[:_NAMED_SAMPLES])
    return named + (f" and {len(ids) - _NAMED_SAMPLES} more" if len(ids) > _NAMED_SAMPLES else "")
