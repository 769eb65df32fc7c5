"""TensorBoard events: what is written, superseded after a resume, and said when TensorBoard is not there."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from plugin.training.run.events import (
    Events,
    MissingTracker,
    adopt_events,
    check_trackers,
    summary_writer,
)


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


class Tracker:
    """Stands for one of accelerate's."""

    made: ClassVar[list[Tracker]] = []
    requires_logging_directory = True

    def __init__(self, run_name: str, logging_dir: str) -> None:
        self.said: list[object] = [(run_name, logging_dir)]
        Tracker.made.append(self)

    def store_init_configuration(self, values: dict[str, str]) -> None:
        self.said.append(values)

    def log(self, values: dict[str, float], step: int) -> None:
        self.said.append((step, values))

    def finish(self) -> None:
        self.said.append("finished")


def test_trackers_are_told_what_tensorboard_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracking = SimpleNamespace(LOGGER_TYPE_TO_CLASS={"mine": Tracker})
    monkeypatch.setitem(sys.modules, "accelerate", SimpleNamespace(tracking=tracking))
    monkeypatch.setitem(sys.modules, "accelerate.tracking", tracking)
    check_trackers(False, ["mine"])
    with pytest.raises(ValueError, match=r"^--tracker other: is none of mine$"):
        check_trackers(False, ["other"])
    events = Events(None, 3, ["mine"], {"rows": 2, "loss": {"kl": 1.0}}, tmp_path)
    events.scalars(3, {"train/loss": 0.5})
    events.flush()
    events.close()
    facts = {"rows": "2", "loss": "{'kl': 1.0}"}
    assert Tracker.made[0].said == [
        ("t5gemma2", str(tmp_path)), facts, (3, {"train/loss": 0.5}), "finished",
    ]  # fmt: skip


def test_a_missing_accelerate_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate.tracking", None)
    with pytest.raises(MissingTracker, match="pip install accelerate"):
        check_trackers(False, ["wandb"])


def test_accelerates_own_trackers(tmp_path: Path) -> None:
    """Its TensorBoard tracker, where accelerate is installed."""
    pytest.importorskip("accelerate", reason="the package accelerate is not installed")
    events = Events(None, 1, ["tensorboard"], {"rows": 2}, tmp_path)
    events.scalars(1, {"train/loss": 0.5})
    events.close()
    assert list((tmp_path / "t5gemma2").rglob("events.out.tfevents.*"))
