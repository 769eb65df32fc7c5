"""What a run measures, step by step: TensorBoard's events, and any tracker that the package `accelerate` knows.

Neither package is needed where it is not asked for.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class MissingTracker(ImportError):
    """A package that was asked for is not installed; one line saying how to get it."""


class Events:
    """Scalars by step, written below `folder` and to `trackers`; without both nothing is written."""

    def __init__(
        self,
        folder: Path | None,
        next_step: int = 1,
        trackers: Sequence[str] = (),
        facts: Mapping[str, Any] | None = None,
        place: Path = Path(),
    ) -> None:
        """`next_step`: what an earlier process wrote from that step on is superseded by this one.

        `facts` are what the trackers call a run's configuration; `place` is where those write that write files.
        """
        self.folder = folder
        self._writer: Any = summary_writer()(str(folder), purge_step=next_step) if folder else None
        self._trackers = [_tracker(name, place) for name in trackers]
        for tracker in self._trackers:
            tracker.store_init_configuration({name: str(value) for name, value in (facts or {}).items()})

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Values by tag, such as "train/loss", at a global step."""
        if self._writer is not None:
            for tag, value in values.items():
                self._writer.add_scalar(tag, value, step)
        for tracker in self._trackers:
            tracker.log(dict(values), step=step)

    def flush(self) -> None:
        """To the files."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Flushes and ends."""
        if self._writer is not None:
            self._writer.close()
        for tracker in self._trackers:
            tracker.finish()


def adopt_events(earlier: Path, folder: Path) -> None:
    """Copies a checkpoint's events to a run's `folder` that has none, as where a checkpoint alone was restored."""
    if earlier.is_dir() and not folder.exists():
        shutil.copytree(earlier, folder)


def check_trackers(tensorboard: bool, trackers: Sequence[str]) -> None:
    """Raises `MissingTracker` where a package is not installed, and `ValueError` for a name that is no tracker's."""
    if tensorboard:
        summary_writer()
    known = _tracker_classes() if trackers else {}
    for name in trackers:
        if name not in known:
            raise ValueError(f"--tracker {name}: is none of {', '.join(sorted(known))}")


def summary_writer() -> Any:
    """torch's SummaryWriter class; `MissingTracker` when TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingTracker(
            "tensorboard is not installed: pip install 't5gemma2-serving[train]', or give --no-tensorboard"
        ) from None
    return SummaryWriter


def _tracker_classes() -> dict[str, Any]:
    try:
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS
    except ImportError:
        raise MissingTracker("--tracker: needs accelerate and the tracker: pip install accelerate") from None
    return {str(getattr(name, "value", name)): found for name, found in LOGGER_TYPE_TO_CLASS.items()}


def _tracker(name: str, place: Path) -> Any:
    found = _tracker_classes()[name]
    options = {"logging_dir": str(place)} if found.requires_logging_directory else {}
    try:
        tracker = found("t5gemma2", **options)
        if hasattr(tracker, "start"):
            tracker.start()
    except ImportError as error:
        raise MissingTracker(f"--tracker {name}: pip install {name} ({error})") from None
    return tracker
