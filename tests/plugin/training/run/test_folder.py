"""The run folder by itself: order of checkpoints, the best one, what is kept, what a crash leaves."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from plugin.training.run.folder import RunError, RunFolder


def _writer(loss: float | None = None, state: str | None = None) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for name in ("model.safetensors", "config.json", "optimizer_state_dict.pt"):
            (folder / name).write_text("{}")
        default = json.dumps({"epoch": 1, "local_step": 2, "global_step": 3})
        (folder / "training_state.json").write_text(state or default)
        if loss is not None:
            (folder / "val_metrics.json").write_text(json.dumps({"loss_epoch": loss}))

    return write


def _names(folder: RunFolder) -> list[str]:
    return [checkpoint.path.name for checkpoint in folder.checkpoints()]


def test_the_newest_is_by_epoch_and_step_not_by_name(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert folder.newest() is None
    for epoch, step in ((0, 9), (0, 10), (0, None), (9, 2), (9, None), (10, 3)):
        folder.save(epoch, step, _writer())
    assert _names(folder) == ["0.9", "0.10", "0", "9.2", "9", "10.3"]
    newest = folder.newest()
    assert newest is not None and (newest.epoch, newest.local_step) == (10, 3)
    assert newest.state() == {"epoch": 1, "local_step": 2, "global_step": 3}


def test_best_is_the_lowest_validation_loss_and_survives_a_copy_f09(tmp_path: Path) -> None:
    """A relative link, so it resolves in a copied run folder, of one epoch as of several (F09)."""
    folder = RunFolder(tmp_path / "run")
    for epoch, loss in enumerate((0.5, 0.25, 0.25, 0.75)):
        folder.save(epoch, None, _writer(loss))
        folder.point_best()
        assert os.readlink(folder.path / "checkpoint_best") == str(min(epoch, 1))
    copy = shutil.copytree(folder.path, tmp_path / "elsewhere", symlinks=True)
    shutil.rmtree(folder.path)
    assert (copy / "checkpoint_best").resolve() == copy / "1"
    assert (copy / "checkpoint_best" / "config.json").is_file()


def test_without_validation_best_is_the_last_and_the_log_says_so_f09(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = RunFolder(tmp_path / "run")
    assert folder.point_best() is None
    folder.save(0, None, _writer())
    folder.save(1, None, _writer())
    with caplog.at_level(logging.INFO):
        folder.point_best()
    assert os.readlink(folder.path / "checkpoint_best") == "1"
    assert "no validation loss, it points to the last epoch, 1" in caplog.text


def test_the_keep_limit_never_removes_the_best_f09(tmp_path: Path) -> None:
    """Epoch 0 is best; of the others only the last is kept, and of mid-epoch checkpoints only a newest one (F09)."""
    folder = RunFolder(tmp_path / "run")
    for epoch, loss in enumerate((0.1, 0.5, 0.4)):
        folder.save(epoch, 5, _writer())
        folder.save(epoch, None, _writer(loss))
        folder.point_best()
        folder.prune(1)
    assert _names(folder) == ["0", "2"]
    assert (folder.path / "checkpoint_best").resolve().name == "0"
    folder.save(3, 5, _writer())
    folder.save(3, 10, _writer())
    folder.prune(None)
    assert _names(folder) == ["0", "2", "3.10"]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")

    def fail(path: Path) -> None:
        _writer()(path)
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        folder.save(0, 1, fail)
    assert list(folder.path.iterdir()) == []


def test_leftovers_are_ignored_and_cleaned_f08(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An unfinished write is removed, a folder that lacks files is ignored and later moved aside, not lost, and a
    missing link is made (F08).
    """
    folder = RunFolder(tmp_path / "run")
    folder.save(0, None, _writer(0.5))
    _writer()(folder.path / ".1.99.tmp") if (folder.path / ".1.99.tmp").mkdir() else None
    (folder.path / ".checkpoint_best.99.tmp").symlink_to("1")
    (folder.path / ".1.7.99.tmp").mkdir()
    (folder.path / ".notes.tmp").write_text("the user's own")
    (folder.path / "1").mkdir()
    (folder.path / "1" / "config.json").write_text("{}")
    with caplog.at_level(logging.WARNING):
        assert _names(folder) == ["0"]
    assert "1: ignored, it lacks model.safetensors, optimizer_state_dict.pt" in caplog.text
    folder.clean()
    names = [".notes.tmp", "0", "1", "checkpoint_best"]
    assert sorted(path.name for path in folder.path.iterdir()) == names
    folder.save(1, None, _writer(0.25))
    assert _names(folder) == ["0", "1"]
    assert (folder.path / "1" / "model.safetensors").is_file()
    folder.clean()
    (aside,) = folder.path.glob("1.incomplete.*")
    assert (aside / "config.json").read_text() == "{}" and "moved to" in caplog.text


def test_a_whole_checkpoint_is_never_written_over(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    path = folder.save(0, 3, _writer(0.5))

    def never(_: Path) -> None:
        raise AssertionError("written again")

    assert folder.save(0, 3, never) == path


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.save(0, None, _writer(state='{"epoch": 1}'))
    (checkpoint,) = folder.checkpoints()
    with pytest.raises(RunError, match=r"0/training_state.json: no epoch, local_step and global_step"):
        checkpoint.state()
    (checkpoint.path / "val_metrics.json").write_text("[1")
    with pytest.raises(RunError, match=r"0/val_metrics.json: "):
        folder.point_best()
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="the run folder cannot be made"):
        RunFolder(tmp_path / "file" / "run")


def test_a_second_process_is_kept_out(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run").claimed():
        other = RunFolder(tmp_path / "run")
        with pytest.raises(RunError, match="run: another process is training in it"), other.claimed():
            raise AssertionError("both are in")
    with pytest.raises(BlockingIOError, match="of the body"), other.claimed():
        raise BlockingIOError("of the body")
