"""The folder of a training run: its checkpoints, which of them is best, and what a crash may leave behind.

    run/0  run/1 ...          an epoch's checkpoint, complete
    run/2.150                 a checkpoint in the middle of epoch 2, after 150 of its steps
    run/checkpoint_best       relative link to the checkpoint with the lowest validation loss
    run/.2.150.1234.tmp       what a killed run was writing; never read, removed by the next run

A checkpoint is written under a temporary name and then renamed, so one that has its name is whole; none is ever written
over.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

logger = logging.getLogger(__name__)

BEST: Final = "checkpoint_best"
TRAINING_STATE: Final = "training_state.json"
VAL_METRICS: Final = "val_metrics.json"
OPTIMIZER_STATE: Final = "optimizer_state_dict.pt"
_NEEDED = ("model.safetensors", "config.json", OPTIMIZER_STATE, TRAINING_STATE)
_NAME = re.compile(r"(0|[1-9]\d*)(?:\.([1-9]\d*))?")
_LEFTOVER = re.compile(rf"\.(?:{BEST}|\d+(?:\.\d+)?)\.\d+\.tmp")


class RunError(ValueError):
    """The run folder or a checkpoint in it cannot be used; one line naming file and reason."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole checkpoint of a run: of the end of `epoch`, or after `local_step` of its steps."""

    path: Path
    epoch: int
    local_step: int | None

    @property
    def order(self) -> tuple[int, float]:
        """Later checkpoints of a run are greater."""
        return self.epoch, float("inf") if self.local_step is None else self.local_step

    def state(self) -> dict[str, int]:
        """training_state.json: epoch, local_step, global_step; RunError when it holds anything else."""
        file = self.path / TRAINING_STATE
        try:
            value = json.loads(file.read_text())
            return {name: int(value[name]) for name in ("epoch", "local_step", "global_step")}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{file}: no epoch, local_step and global_step can be read ({error!r:.80})"
            ) from None

    def json(self, name: str) -> dict[str, Any] | None:
        """One of its JSON files, None where it has none; RunError when it cannot be read."""
        try:
            value = json.loads((self.path / name).read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise RunError(f"{self.path / name}: {error}") from None
        if not isinstance(value, dict):
            raise RunError(f"{self.path / name}: not a JSON object")
        return value

    def loss(self) -> float | None:
        """Its validation loss, None without a validation set."""
        metrics = self.json(VAL_METRICS)
        value = None if metrics is None else metrics.get("loss_epoch")
        return float(value) if isinstance(value, int | float) else None


class RunFolder:
    """The run folder at `path`, which is made if need be. One process at a time may write to it: see `claimed`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{path}: the run folder cannot be made: {error.strerror}") from None

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Keeps other processes out while it lasts, or until this one dies; RunError when another is in."""
        handle = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(f"{self.path}: another process is training in it") from None
            yield
        finally:
            os.close(handle)

    def clean(self) -> None:
        """Removes what a killed run was writing, and mends `checkpoint_best` if it was killed before linking."""
        for entry in sorted(self.path.iterdir()):
            if _LEFTOVER.fullmatch(entry.name):
                logger.info("%s: unfinished, removed", entry)
                _remove(entry)
        self.point_best()

    def checkpoints(self) -> list[Checkpoint]:
        """All whole checkpoints, earliest first; a folder that only looks like one is named in the log."""
        found = []
        for entry in self.path.iterdir():
            match = _NAME.fullmatch(entry.name)
            if match is None or entry.is_symlink() or not entry.is_dir():
                continue
            missing = [name for name in _NEEDED if not (entry / name).is_file()]
            if missing:
                logger.warning("%s: ignored, it lacks %s", entry, ", ".join(missing))
                continue
            found.append(Checkpoint(entry, int(match[1]), None if match[2] is None else int(match[2])))
        return sorted(found, key=lambda checkpoint: checkpoint.order)

    def newest(self) -> Checkpoint | None:
        """The checkpoint that a run goes on from."""
        return max(self.checkpoints(), key=lambda checkpoint: checkpoint.order, default=None)

    def save(self, epoch: int, local_step: int | None, write: Callable[[Path], None]) -> Path:
        """A new checkpoint whose files `write` puts into the folder that it is given; its path.

        It appears whole or, when the process dies or `write` raises, not at all. A whole one of that name stays.
        """
        name = str(epoch) if local_step is None else f"{epoch}.{local_step}"
        target = self.path / name
        if any(checkpoint.path == target for checkpoint in self.checkpoints()):
            return target
        unfinished = self.path / f".{name}.{os.getpid()}.tmp"
        _remove(unfinished)
        unfinished.mkdir()
        try:
            write(unfinished)
            for file in [*unfinished.rglob("*"), unfinished]:
                _flush(file)
            if target.exists():
                # No run leaves such a folder; somebody put it there, and may want what is in it.
                aside = self.path / f"{name}.incomplete.{os.getpid()}"
                target.rename(aside)
                logger.warning("%s: is no whole checkpoint; moved to %s", target, aside)
            unfinished.rename(target)
        except BaseException:
            _remove(unfinished)
            raise
        _flush(self.path)
        return target

    def point_best(self, last: Path | None = None) -> Path | None:
        """Points `checkpoint_best` to the checkpoint with the lowest validation loss, the earliest of equals.

        Without any validation loss it is `last` or the last epoch, which the log says. A checkpoint in mid-epoch counts
        where it was validated: where the steps that were asked for ended. None while there is none of them.
        """
        link, found = self.path / BEST, self.checkpoints()
        epochs = [checkpoint for checkpoint in found if checkpoint.local_step is None]
        losses = {checkpoint: checkpoint.loss() for checkpoint in found}
        judged = [(loss, checkpoint.order) for checkpoint, loss in losses.items() if loss is not None]
        if judged:
            best = min(judged)[1]
            name = next(checkpoint.path.name for checkpoint in found if checkpoint.order == best)
        elif last is not None:
            name = last.name
        elif epochs:
            target = os.readlink(link) if link.is_symlink() else ""
            here = [checkpoint for checkpoint in found if checkpoint.path.name == target]
            name = max(epochs[-1:] + here, key=lambda checkpoint: checkpoint.order).path.name
        else:
            return None
        if not judged:
            logger.info("%s: no validation loss, it points to the last epoch, %s", BEST, name)
        if link.is_symlink() and os.readlink(link) == name:
            return link
        if link.exists() and not link.is_symlink():
            raise RunError(f"{link}: is no link; move it away")
        new = self.path / f".{BEST}.{os.getpid()}.tmp"
        new.unlink(missing_ok=True)
        new.symlink_to(name, target_is_directory=True)
        new.replace(link)
        return link

    def prune(self, keep: int | None) -> None:
        """Removes checkpoints in mid-epoch but for a newest one, and all epochs but the last `keep` and the best."""
        found = self.checkpoints()
        epochs = [checkpoint for checkpoint in found if checkpoint.local_step is None]
        spared = {checkpoint.path for checkpoint in (epochs if keep is None else epochs[-keep:])}
        spared |= {self.path / os.readlink(self.path / BEST)} if (self.path / BEST).is_symlink() else set()
        for checkpoint in found[:-1]:
            if checkpoint.path not in spared:
                gone = self.path / f".{checkpoint.path.name}.{os.getpid()}.tmp"
                checkpoint.path.rename(gone)
                _remove(gone)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """To the disk, so that a rename is never there before what it names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
