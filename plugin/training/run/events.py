"""TensorBoard events of a run; the one place that needs the `train` extra."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class MissingTensorBoard(ImportError):
    """TensorBoard is not installed; one line saying how to get it."""


class Events:
    """Scalars by step, written below `folder`; without a folder nothing is written."""

    def __init__(self, folder: Path | None, next_step: int = 1) -> None:
        """`next_step`: what an earlier process wrote from that step on is superseded by this one."""
        self.folder = folder
        self._writer: Any = summary_writer()(str(folder), purge_step=next_step) if folder else None

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Values by tag, such as "train/loss", at a global step."""
        if self._writer is not None:
            for tag, value in values.items():
                self._writer.add_scalar(tag, value, step)

    def flush(self) -> None:
        """To the files."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Flushes and ends."""
        if self._writer is not None:
            self._writer.close()


def adopt_events(earlier: Path, folder: Path) -> None:
    """Copies a checkpoint's events to a run's `folder` that has none, as where a checkpoint alone was restored."""
    if earlier.is_dir() and not folder.exists():
        shutil.copytree(earlier, folder)


def summary_writer() -> Any:
    """torch's SummaryWriter class; `MissingTensorBoard` when TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingTensorBoard(
            "tensorboard is not installed: pip install 't5gemma2-serving[train]', or give --no-tensorboard"
        ) from None
    return SummaryWriter
