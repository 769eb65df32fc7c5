"""A whole run: epochs, checkpoints, validation, the best one, and a polite end when it is asked to stop."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from plugin.training.data.samples import Sample
from plugin.training.run.checkpoint import RunMetadata, write_checkpoint
from plugin.training.run.evaluation import evaluate
from plugin.training.run.events import Events
from plugin.training.run.folder import RunFolder
from plugin.training.run.progress import RunProgress
from plugin.training.run.stop import Interrupted, StopRequest
from plugin.training.run.trainer import DraftTrainer, StepReport, check_finite

logger = logging.getLogger(__name__)

_ECHO = 3.0
"""Seconds within which torchrun passes on a signal."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What changes nothing about the weights: `save_every` steps between checkpoints in mid-epoch (None: none), how
    many epochs to `keep` beside the best (None: all), and `log_every` steps between looks at the losses."""

    save_every: int | None = None
    keep: int | None = None
    log_every: int = 1

    def __post_init__(self) -> None:
        for name in ("save_every", "keep", "log_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: {value} is below 1")


class TrainingRun:
    """Runs `trainer` to its last epoch, with checkpoints in `folder`; it starts wherever `trainer` stands.

    Of several processes all train and validate, and the main one writes; a signal to one of them stops all.
    """

    def __init__(
        self,
        trainer: DraftTrainer,
        folder: RunFolder,
        metadata: RunMetadata,
        validation: Sequence[Sample],
        options: RunOptions,
        events: Events,
        progress: RunProgress,
    ) -> None:
        self.trainer, self.folder, self.metadata, self.validation = trainer, folder, metadata, validation
        self.options, self.events, self.progress = options, events, progress
        self.processes = trainer.processes
        self.stop = StopRequest(_ECHO if self.processes.count > 1 else 0.0)
        self._unseen: list[StepReport] = []

    def __call__(self) -> None:
        """Trains what is left.

        Raises `Interrupted` naming the checkpoint saved when a signal asked to stop, and `NotFinite` when a loss, a
        gradient or the verifier's states are no numbers; nothing is saved then.
        """
        with self.stop, self.progress:
            while not self.trainer.done:
                for report in self.trainer.steps():
                    self._after(report)
                self._end_epoch()
            self.processes.wait()

    def _after(self, report: StepReport) -> None:
        self._unseen.append(report)
        state, every = self.trainer.state, self.options.save_every
        save = every is not None and state.local_step % every == 0
        if save or len(self._unseen) >= self.options.log_every:
            self._look()
        if self.processes.any(self.stop.requested):
            self._look()  # always: a signal may come at any moment, and what was not looked at is not saved
            self._interrupt()
        # The end of the epoch saves it anyway, once it is validated.
        if save and state.local_step < self.trainer.epoch_steps[state.epoch]:
            self._save(state.local_step, {})

    def _look(self) -> None:
        """Reads the losses of the steps since the last look; waits for the device."""
        reports, self._unseen = self._unseen, []
        if not reports:
            return
        losses = check_finite(reports, self.processes)
        for report, loss in zip(reports, losses, strict=True):
            self.events.scalars(report.number, {"train/loss": loss, "train/learning_rate": report.rate})
        self.progress.advance(reports, losses)

    def _end_epoch(self) -> None:
        """Validates and saves, also where the steps that were asked for end before the epoch does."""
        self._look()
        state, whole = self.trainer.state, self.trainer.epoch_done
        metrics: dict[str, float] = {}
        if self.validation:
            self.progress.say(f"epoch {state.epoch}: validating on {len(self.validation)} samples")
            metrics = evaluate(self.trainer, self.validation, self._pause)
            self.events.scalars(state.global_step, {f"val/{name}": value for name, value in metrics.items()})
            shown = ", ".join(f"{name} {value:.4f}" for name, value in sorted(metrics.items()))
            self.progress.say(f"epoch {state.epoch}: {shown or 'no validation sample holds an anchor'}")
        path = self._save(None if whole else state.local_step, metrics)
        if self.processes.main:
            self.folder.point_best(path)
            self.folder.prune(self.options.keep)
        self.progress.say(f"epoch {state.epoch}: saved as {path}")
        if whole:
            self.trainer.next_epoch()

    def _pause(self) -> None:
        if self.processes.any(self.stop.requested):
            self._interrupt()

    def _interrupt(self) -> None:
        path = self._save(self.trainer.state.local_step, {})
        raise Interrupted(
            f"stopped after step {self.trainer.state.global_step} and saved {path}; the same command goes on from there"
        )

    def _save(self, local_step: int | None, metrics: Mapping[str, float]) -> Path:
        """Saves in the main process, for which the others wait: none may end while it writes."""
        epoch = self.trainer.state.epoch
        path = self.folder.path / (str(epoch) if local_step is None else f"{epoch}.{local_step}")
        with self.processes.main_first():
            if self.processes.main:
                self.events.flush()
                self.folder.save(
                    epoch,
                    local_step,
                    lambda folder: write_checkpoint(folder, self.trainer, self.metadata, metrics, path),
                )
                if local_step is not None:
                    self.folder.prune(None)
        return path
