"""Whole runs: killed, interrupted, resumed, extended; what they leave in the folder."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
import torch
from transformers import T5Gemma2ForConditionalGeneration

from plugin.training.data.samples import Sample
from plugin.training.draft.checkpoint import load_draft
from plugin.training.draft.model import TrainableDraft
from plugin.training.run import checkpoint as run_checkpoint
from plugin.training.run import training_run
from plugin.training.run.checkpoint import RunMetadata, restore
from plugin.training.run.events import Events
from plugin.training.run.folder import RunError, RunFolder
from plugin.training.run.stop import Interrupted, StopRequest
from plugin.training.run.trainer import DraftTrainer, NotFinite, StepReport
from plugin.training.run.training_run import RunOptions, TrainingRun
from plugin.training.settings import DraftSettings
from plugin.training.verifier.extraction import Extractor

SAMPLES = [Sample([2, 8 + i], [*range(10 + i, 17 + i + i % 5), 1], f"s{i}") for i in range(18)]
SETTINGS = DraftSettings(
    epochs=2, rows=2, total_length=32, response_length=24, max_anchors=6, peak_rate=3e-3, warmup=0.3,
    precision="float32",
)  # fmt: skip
METADATA = RunMetadata("owner/verifier", None, "the command\n", "exec it", {"pairs": 18}, {"seed": 42})
PUBLISHED = {
    "model.safetensors", "config.json", "config.py", "optimizer_state_dict.pt", "scheduler_state_dict.pt",
    "training_state.json", "train_command.txt", "val_metrics.json", "training", "tensorboard", "README.md",
}  # fmt: skip


class Recorder:
    """Takes the place of the progress bar; `at` is called after each step with its number."""

    def __init__(self, at: Callable[[int], None] = lambda step: None) -> None:
        self.rows: list[tuple[int, float, float]] = []
        self.at = at

    def advance(self, reports: Sequence[StepReport], losses: Sequence[float]) -> None:
        for report, loss in zip(reports, losses, strict=True):
            self.rows.append((report.number, report.rate, loss))
            self.at(report.number)

    def say(self, words: str) -> None:
        assert words

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


@pytest.fixture
def run(
    make_draft: Callable[..., TrainableDraft], verifier: T5Gemma2ForConditionalGeneration, tmp_path: Path
) -> Callable[..., Recorder]:
    """`run(name, at=..., settings=..., validation=..., **options)`: trains what is left in a run folder."""

    def go(
        name: str = "run",
        at: Callable[[int], None] = lambda step: None,
        settings: DraftSettings = SETTINGS,
        validation: Sequence[Sample] = SAMPLES[:3],
        **options: int,
    ) -> Recorder:
        folder = RunFolder(tmp_path / name)
        folder.clean()
        newest = folder.newest()
        table = verifier.get_input_embeddings().weight.detach()
        draft = make_draft("dspark") if newest is None else load_draft(newest.path, table)
        trainer = DraftTrainer(draft, Extractor(verifier, (0, 2, 5)), settings, SAMPLES)
        if newest is not None:
            restore(newest, trainer)
        recorder = Recorder(at)
        TrainingRun(
            trainer, folder, METADATA, validation, RunOptions(**options), Events(None), recorder  # type: ignore[arg-type]
        )()  # fmt: skip
        return recorder

    return go


def _killed(action: Callable[[], object]) -> None:
    """Runs `action` in a child process that must die by kill -9."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            action()
        finally:
            os._exit(3)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def _kill_at(number: int) -> Callable[[int], None]:
    return lambda step: os.kill(os.getpid(), signal.SIGKILL) if step == number else None


def _tensors(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in ("model.safetensors", "val_metrics.json")}


def test_a_killed_run_goes_on_exactly_f08(run: Callable[..., Recorder], tmp_path: Path) -> None:
    """Kill -9 after a mid-epoch save, in both epochs; losses, rates, weights and metrics are the whole run's (F08)."""
    whole = run("whole").rows
    steps = len(whole)
    assert [number for number, _, _ in whole] == list(range(1, steps + 1)) and steps >= 6
    per_epoch = json.loads((tmp_path / "whole/0/training_state.json").read_text())["local_step"]
    for stop in (per_epoch - 1, per_epoch + 2):
        _killed(lambda stop=stop: run("run", at=_kill_at(stop), save_every=1))  # type: ignore[misc]
    rest = run("run").rows
    assert rest[0][0] == per_epoch + 2, "the step that was not saved is taken again"
    assert rest == [pytest.approx(row, abs=1e-6) for row in whole[rest[0][0] - 1 :]]
    assert _tensors(tmp_path / "run/1") == _tensors(tmp_path / "whole/1")
    assert json.loads((tmp_path / "run/1/training_state.json").read_text())["global_step"] == steps


def test_a_kill_in_the_middle_of_a_save_leaves_the_last_whole_one_f08(
    run: Callable[..., Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The half-written checkpoint of step 3 is ignored and removed, that of step 2 is used (F08)."""
    whole = run("whole").rows
    save, saves = torch.save, []

    def dying(*arguments: object) -> None:
        saves.append(arguments)
        if len(saves) == 6:  # two files a checkpoint
            os.kill(os.getpid(), signal.SIGKILL)
        save(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(run_checkpoint.torch, "save", dying)
        _killed(lambda: run("run", save_every=1))
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert (
        len(names) == 2 and names[1] == "0.2" and names[0].startswith(".0.3.") and names[0].endswith(".tmp")
    )
    rest = run("run").rows
    assert rest == [pytest.approx(row, abs=1e-6) for row in whole[2:]]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["0", "1", "checkpoint_best"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_stops(
    run: Callable[..., Recorder], tmp_path: Path, number: signal.Signals
) -> None:
    whole = run("whole").rows
    before = signal.getsignal(number)
    with pytest.raises(
        Interrupted, match=r"stopped after step 2 and saved .*/0\.2; the same command goes on"
    ):
        run("run", at=lambda step: os.kill(os.getpid(), number) if step == 2 else None)
    assert signal.getsignal(number) is before
    assert run("run").rows == whole[2:]


def test_a_signal_at_any_moment_saves_only_steps_that_were_looked_at(
    run: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes just after the run has asked for one: the losses until the checkpoint are read all the same."""

    class Late(StopRequest):
        asked = 0

        def __getattribute__(self, name: str) -> object:
            if name != "requested":
                return super().__getattribute__(name)
            Late.asked += 1
            return Late.asked > 1

    monkeypatch.setattr(training_run, "StopRequest", Late)
    seen: list[int] = []
    with pytest.raises(Interrupted, match="stopped after step 2 "):
        run("run", at=seen.append, log_every=100)
    assert seen == [1, 2]


def test_a_full_disk_is_one_line_and_leaves_nothing(
    run: Callable[..., Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("[enforce fail at inline_container.cc] .\nPytorchStreamWriter failed writing file")

    monkeypatch.setattr(run_checkpoint.torch, "save", full)
    with pytest.raises(
        RunError, match=r"run/0.1/optimizer_state_dict.pt: cannot be written: .* failed writing"
    ):
        run("run", save_every=1)
    assert list((tmp_path / "run").iterdir()) == []


def test_a_signal_during_validation_keeps_the_epochs_last_step(
    run: Callable[..., Recorder], tmp_path: Path
) -> None:
    whole = run("whole").rows
    last = json.loads((tmp_path / "whole/0/training_state.json").read_text())["local_step"]
    with pytest.raises(Interrupted):
        run("run", at=lambda step: os.kill(os.getpid(), signal.SIGTERM) if step == last else None)
    assert not (tmp_path / "run/0").exists() and (tmp_path / f"run/0.{last}").is_dir()
    assert run("run").rows == whole[last:]
    assert _tensors(tmp_path / "run/0") == _tensors(tmp_path / "whole/0")


def test_an_epoch_has_the_published_layout_f09(run: Callable[..., Recorder], tmp_path: Path) -> None:
    """A run of one epoch; every file of the published folder, and the link beside it (F09)."""
    one = run("run", settings=_with(epochs=1))
    folder = tmp_path / "run"
    assert sorted(path.name for path in folder.iterdir()) == ["0", "checkpoint_best"]
    best = folder / "checkpoint_best"
    assert os.readlink(best) == "0" and {path.name for path in best.iterdir()} == PUBLISHED
    state = json.loads((best / "training_state.json").read_text())
    assert state == {"epoch": 0, "local_step": len(one.rows), "global_step": len(one.rows)}
    metrics = json.loads((best / "val_metrics.json").read_text())
    assert {"loss_epoch", "full_acc_epoch", "eal_epoch", "position_7_acc_epoch", "tv_loss_epoch"} <= set(
        metrics
    )
    assert json.loads((best / "training/data_config.json").read_text()) == {"pairs": 18}
    assert (best / "training/train.sh").read_text() == "#!/bin/sh\nexec it\n"
    assert "# DSpark draft for owner/verifier" in (best / "README.md").read_text()
    assert torch.load(best / "scheduler_state_dict.pt")["last_epoch"] == len(one.rows)


def test_without_validation_there_are_no_metrics_f09_f16(
    run: Callable[..., Recorder], tmp_path: Path
) -> None:
    """No val_metrics.json and no NaN; the best is the last epoch, also with a keep limit (F09, F16)."""
    run("run", validation=[], keep=1)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["1", "checkpoint_best"]
    assert os.readlink(tmp_path / "run/checkpoint_best") == "1"
    assert not (tmp_path / "run/1/val_metrics.json").exists()


def test_validation_without_an_anchor_is_none(run: Callable[..., Recorder], tmp_path: Path) -> None:
    """Its loss of 0 would make the first epoch the best of all."""
    run("run", validation=[Sample([2, 8], [1])])
    assert not (tmp_path / "run/1/val_metrics.json").exists()
    assert os.readlink(tmp_path / "run/checkpoint_best") == "1"


def test_a_run_that_goes_wrong_saves_nothing_f10(run: Callable[..., Recorder], tmp_path: Path) -> None:
    """NaN weights never reach the disk, though a save after every step was asked for (F10)."""
    with pytest.raises(NotFinite, match=r"^(step \d+: |validation after step )"):
        run("run", settings=_with(peak_rate=1e6, epochs=20), save_every=1)
    for checkpoint in RunFolder(tmp_path / "run").checkpoints():
        stored = torch.load(checkpoint.path / "optimizer_state_dict.pt")["state"]
        assert all(state["master_weight"].isfinite().all() for state in stored.values())


def test_a_published_folder_can_be_continued(run: Callable[..., Recorder], tmp_path: Path) -> None:
    """Without our own notes in it, and with `checkpoint_best` pointing to it, as downloaded."""
    run("run")
    folder = tmp_path / "run"
    for name in ("training", "tensorboard"):
        os.rename(folder / "1" / name, tmp_path / name)
    file = folder / "1" / "optimizer_state_dict.pt"
    stored = torch.load(file)
    for state in stored["state"].values():
        del state["master_weight"]
    del stored["param_groups"][0]["param_names"]
    torch.save(stored, file)
    step = json.loads((folder / "1/training_state.json").read_text())["global_step"]
    more = run("run", settings=_with(epochs=3)).rows
    assert more[0][0] == step + 1 and len(more) >= 3
    assert more[0][1] > more[-1][1] > 0
    assert (folder / "2").is_dir() and os.readlink(folder / "checkpoint_best") in "012"


def test_an_optimizer_state_of_other_shapes_is_refused(run: Callable[..., Recorder], tmp_path: Path) -> None:
    run("run")
    file = tmp_path / "run/1/optimizer_state_dict.pt"
    stored = torch.load(file)
    stored["state"][0]["exp_avg"] = torch.zeros(3, 5)
    torch.save(stored, file)
    with pytest.raises(RunError, match=r"1/optimizer_state_dict.pt: exp_avg of .* has shape \[3, 5\]"):
        run("run", settings=_with(epochs=3))
    file.write_bytes(b"torn")
    with pytest.raises(RunError, match=r"1/optimizer_state_dict.pt: cannot be read"):
        run("run", settings=_with(epochs=3))


def _with(**fields: object) -> DraftSettings:
    return dataclasses.replace(SETTINGS, **fields)  # type: ignore[arg-type]
