"""Training a draft against its frozen verifier: optimizer steps in an order that seed and step alone decide.

Nothing random outlives a step: the order of an epoch, the anchors and the noise are functions of seed, epoch and step.
Weights, optimizer and the number of steps done are therefore all that a run needs to go on exactly where it stood.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch.nn.parallel import DistributedDataParallel

from plugin.training.data.samples import Sample
from plugin.training.draft.anchors import Blocks, make_blocks, sample_anchors, shortened
from plugin.training.draft.model import TrainableDraft
from plugin.training.run.processes import ALONE, Processes
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

    `loss` and `gradient_norm` (before clipping) are scalars, `tokens` counts the decoder tokens, `ids` are the samples.
    `finite` bool [samples of this process] tells of the verifier's states, from number `first` of the `ids` on.
    """

    number: int
    rate: float
    loss: torch.Tensor
    gradient_norm: torch.Tensor
    finite: torch.Tensor
    tokens: int
    ids: tuple[str, ...]
    first: int = 0


class DraftTrainer:
    """Trains `draft` on `samples` whose verifier states come from `extractor`, together with other `processes`.

    `epoch_steps` are the optimizer steps of every epoch, `state` is where training stands. Several processes take a
    step of one with so many times the rows: all of them draw the same rows, blocks and noise, and each computes its
    share. Raises `ValueError` when the extractor taps other layers than the draft reads, or there are no samples.
    """

    def __init__(
        self,
        draft: TrainableDraft,
        extractor: Extractor,
        settings: DraftSettings,
        samples: Sequence[Sample],
        processes: Processes = ALONE,
    ) -> None:
        if not samples:
            raise ValueError("samples: none given, nothing to train on")
        self.draft, self.settings, self.samples, self.processes = draft, settings, samples, processes
        self.extractor, self.block_step = extractor, BlockStep(draft, extractor, settings)
        draft.gradient_checkpointing = settings.gradient_checkpointing
        self._summing_step = processes.data_parallel(self.block_step)
        self.step_rows = settings.step_rows * processes.count
        self.lengths = [1 + len(sample.response) for sample in samples]
        self.epoch_steps = [
            math.ceil(len(self._epoch_rows(epoch)) / self.step_rows) for epoch in range(settings.epochs)
        ]
        self.total_steps = self._at_most(sum(self.epoch_steps))
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
        settings = self.settings
        return learning_rate(
            step, self.total_steps, 1.0, settings.warmup, settings.schedule, settings.warmup_steps
        )

    def _at_most(self, steps: int) -> int:
        return min(steps, self.settings.max_steps or steps)

    def _epoch_rows(self, epoch: int) -> list[list[int]]:
        return epoch_rows(self.lengths, self.settings.total_length, self.settings.seed, epoch)

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def done(self) -> bool:
        """Whether every epoch is trained, or as many steps as were asked for."""
        most = self.settings.max_steps
        return self.state.epoch >= self.settings.epochs or (
            most is not None and self.state.global_step >= most
        )

    @property
    def epoch_done(self) -> bool:
        """Whether every step of the current epoch is taken."""
        return self.state.local_step >= self.epoch_steps[self.state.epoch]

    def go_on(self, state: TrainingState) -> None:
        """Stands at `state`; the learning rates are those of the steps that are left after it.

        `state.epoch` may be one past the last, then nothing is left.
        """
        left = sum(self.epoch_steps[state.epoch :]) - state.local_step
        self.state, self.total_steps = state, self._at_most(state.global_step + max(0, left))
        self.scheduler.last_epoch = state.global_step
        rate = self.settings.peak_rate * self._share_of_peak(state.global_step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.scheduler._last_lr = [rate]

    def steps(self) -> Iterator[StepReport]:
        """Takes the steps that are left of the current epoch, one for each item; `state` is up to date at each."""
        rows, size = self._epoch_rows(self.state.epoch), self.step_rows
        while not self.epoch_done and not self.done:
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
        blocks = self._drawn(rows)
        count = int(blocks.loss_mask.sum())
        begin = min(self.processes.rank * settings.step_rows, len(groups))
        loss = norm = torch.zeros((), device=self.block_step.device)
        finite: list[torch.Tensor] = []
        if count:
            loss, finite = self._gradients(rows, blocks, count, begin)
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
            finite=torch.cat(finite) if finite else torch.ones(0, dtype=torch.bool),
            tokens=sum(1 + len(sample.response) for sample in rows.samples),
            ids=rows.ids,
            first=sum(map(len, groups[:begin])),
        )

    def _gradients(
        self, rows: PackedRows, blocks: Blocks, count: int, begin: int
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Leaves the gradients of all processes' rows in the parameters, of which this one computes those from `begin`.

        The loss of all of them, and which of the own samples' states are finite, by micro-batch.
        """
        settings, processes = self.settings, self.processes
        end = min(begin + settings.step_rows, len(rows.tokens))
        # Whoever has no row takes part with one that counts nothing: the others wait for its gradients.
        idle = begin == end
        parts = [0] if idle else list(range(begin, end, settings.rows))
        loss, finite = torch.zeros((), device=self.block_step.device), []
        for first in parts:
            size = 1 if idle else min(settings.rows, end - first)
            own = blocks.part(first, size)
            if idle:
                own = replace(own, loss_mask=torch.zeros_like(own.loss_mask))
            keys = [(settings.seed, self.state.global_step, "noise", first + row) for row in range(size)]
            held = isinstance(self._summing_step, DistributedDataParallel) and first != parts[-1]
            with self._summing_step.no_sync() if held else nullcontext():
                result = self._summing_step(rows.part(first, size), own, count, noise_keys=keys)
                (result.terms["loss"] * processes.count).backward()
            loss += result.terms["loss"].detach()
            finite += [] if idle else [result.finite]
        return processes.summed(loss), finite

    def blocks(self, rows: PackedRows, *key: object) -> Blocks:
        """Blocks at random anchors of `rows`, drawn by `key`; columns where no row has an anchor are left out."""
        config = self.draft.config
        columns, valid = sample_anchors(
            rows.loss_mask, rows.documents, self.settings.max_anchors, config.block_size, seeded(*key),
            self.settings.whole_blocks, config.ahead,
        )  # fmt: skip
        most = max(1, int(valid.sum(dim=1).max()))
        return make_blocks(
            rows.tokens, rows.documents, rows.positions, columns[:, :most], valid[:, :most],
            config.block_size, config.mask_token_id, config.ahead,
        )  # fmt: skip

    def _drawn(self, rows: PackedRows) -> Blocks:
        """The blocks of the next step, some of them shorter if that is asked for."""
        place = (self.settings.seed, self.state.global_step)
        blocks = self.blocks(rows, *place, "anchors")
        share = self.settings.short_blocks
        if not share:
            return blocks
        return shortened(blocks, share, self.draft.config.ahead, seeded(*place, "sizes"))


def check_finite(reports: Sequence[StepReport], processes: Processes = ALONE) -> list[float]:
    """The reports' losses; waits for the device and for all processes, which raise as one.

    Raises `NotFinite` for the first step that went wrong.
    """
    values = torch.stack([torch.stack([report.loss, report.gradient_norm]) for report in reports]).tolist()
    everybodys = processes.gathered([_not_finite(report) for report in reports])
    for number, (report, (loss, norm)) in enumerate(zip(reports, values, strict=True)):
        wrong = [
            name for name, value in (("the loss", loss), ("the gradient", norm)) if not math.isfinite(value)
        ]
        bad = [name for found in everybodys for name in found[number]]
        if bad:
            raise NotFinite(f"step {report.number}: the verifier's states are not finite on {_listed(bad)}")
        if wrong:
            raise NotFinite(
                f"step {report.number}: {' and '.join(wrong)} not finite; samples {_listed(report.ids)}"
            )
    return [loss for loss, _ in values]


def _not_finite(report: StepReport) -> list[str]:
    own = report.ids[report.first :]
    return [name for name, good in zip(own, report.finite.tolist(), strict=False) if not good]


def _listed(ids: Sequence[str]) -> str:
    named = ", ".join(name or "(unnamed)" for name in ids[:_NAMED_SAMPLES])
    return named + (f" and {len(ids) - _NAMED_SAMPLES} more" if len(ids) > _NAMED_SAMPLES else "")
