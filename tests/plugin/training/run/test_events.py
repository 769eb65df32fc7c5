"""TensorBoard events: what is written, superseded after a resume, and said when TensorBoard is not there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from plugin.training.run.events import Events, MissingTracker, adopt_events, summary_writer


def _read(folder: Path) -> dict[int, float]:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    reader = accumulators.EventAccumulator(str(folder))
    reader.Reload()
    return {event.step: event.value for event in reader.Scalars("train/loss")}


def _write(folder: Path, first: int, values: list[float]) -> None:
    events = Events(folder, first)
    for step, value in enumerate(values, start=first):
        events.scalars(step, {"train/loss": value})
    events.flush()
    events.close()


def test_a_resumed_run_supersedes_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    _write(tmp_path / "tensorboard", 1, [1.0, 2.0, 3.0])
    _write(tmp_path / "tensorboard", 3, [9.0])
    assert _read(tmp_path / "tensorboard") == {1: 1.0, 2: 2.0, 3: 9.0}
    adopt_events(tmp_path / "tensorboard", tmp_path / "run")
    assert _read(tmp_path / "run") == {1: 1.0, 2: 2.0, 3: 9.0}
    adopt_events(tmp_path / "missing", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_without_a_folder_nothing_is_written(tmp_path: Path) -> None:
    events = Events(None)
    events.scalars(1, {"train/loss": 1.0})
    events.flush()
    events.close()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_tensorboard_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingTracker, match=r"pip install 't5gemma2-serving\[train\]'"):
        summary_writer()
