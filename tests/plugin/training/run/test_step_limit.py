"""A run that ends after so many steps: validated, saved and best there, and longer by the same command."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import T5Gemma2ForConditionalGeneration

from plugin.training.data.samples import Sample
from plugin.training.draft.checkpoint import load_draft
from plugin.training.draft.model import TrainableDraft
from plugin.training.run.checkpoint import RunMetadata, compare_facts, restore
from plugin.training.run.events import Events
from plugin.training.run.folder import Checkpoint, RunError, RunFolder
from plugin.training.run.schedule import learning_rate
from plugin.training.run.stop import Interrupted
from plugin.training.run.trainer import DraftTrainer
from plugin.training.run.training_run import RunOptions, TrainingRun
from plugin.training.settings import DraftSettings
from plugin.training.verifier.extraction import Extractor
from tests.plugin.training.run.test_training_run import Recorder

SAMPLES = [Sample([2, 8 + i], [*range(10 + i, 17 + i + i % 5), 1], f"s{i}") for i in range(18)]
SETTINGS = DraftSettings(
    epochs=3, rows=2, total_length=32, response_length=24, max_anchors=6, peak_rate=3e-3, warmup_steps=2,
    schedule="cosine", precision="float32",
)  # fmt: skip
METADATA = RunMetadata("owner/verifier", None, "the command\n", "exec it")


@pytest.fixture
def run(
    make_draft: Callable[..., TrainableDraft], verifier: T5Gemma2ForConditionalGeneration, tmp_path: Path
) -> Callable[..., Recorder]:
    """`run(max_steps, validation, at)`: goes on in the run folder, as the command does."""

    def go(
        max_steps: int | None, validation: list[Sample], at: Callable[[int], None] = lambda _: None
    ) -> Recorder:
        folder = RunFolder(tmp_path / "run")
        folder.clean()
        newest = folder.newest()
        table = verifier.get_input_embeddings().weight.detach()
        draft = load_draft(newest.path, table) if newest else make_draft("dflash")
        settings = dataclasses.replace(SETTINGS, max_steps=max_steps)
        extractor = Extractor(verifier, draft.config.aux_hidden_state_layer_ids)
        trainer = DraftTrainer(draft, extractor, settings, SAMPLES)
        if newest:
            restore(newest, trainer)
        rows = Recorder(at)
        TrainingRun(trainer, folder, METADATA, validation, RunOptions(), Events(None), rows)()  # type: ignore[arg-type]
        assert trainer.done
        return rows

    return go


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("validated", [True, False])
def test_it_ends_in_mid_epoch_and_goes_on(
    run: Callable[..., Recorder], tmp_path: Path, validated: bool
) -> None:
    """The rates are those of so many steps; more of them go on where it ended, and the limit is kept exactly."""
    validation = SAMPLES[:4] if validated else []
    folder = tmp_path / "run"
    rows = run(5, validation).rows
    per_epoch = 4
    assert [number for number, _, _ in rows] == [1, 2, 3, 4, 5]
    expected = [learning_rate(step, 5, 3e-3, 0.0, "cosine", 2) for step in range(5)]
    assert [rate for _, rate, _ in rows] == pytest.approx(expected)
    assert _names(folder) == ["0", f"1.{5 - per_epoch}", "checkpoint_best"]
    assert (folder / "1.1" / "val_metrics.json").exists() == validated
    if not validated:
        assert os.readlink(folder / "checkpoint_best") == "1.1"
    assert run(5, validation).rows == []
    if not validated:
        assert os.readlink(folder / "checkpoint_best") == "1.1"
    assert [number for number, _, _ in run(7, validation).rows] == [6, 7]
    assert [number for number, _, _ in run(8, validation).rows] == [8]
    assert "1" in _names(folder), "the epoch is whole"
    assert len(run(None, validation).rows) == 3 * per_epoch - 8


def test_a_signal_at_the_very_last_step_leaves_its_epoch_to_be_judged(
    run: Callable[..., Recorder], tmp_path: Path
) -> None:
    def stop(step: int) -> None:
        if step == 12:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        run(None, SAMPLES[:4], stop)
    assert _names(tmp_path / "run") == ["0", "1", "2.4", "checkpoint_best"]
    assert run(None, SAMPLES[:4]).rows == []
    assert (tmp_path / "run" / "2" / "val_metrics.json").is_file()


def test_the_best_can_be_where_the_steps_ended(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")

    def write(loss: float) -> Callable[[Path], None]:
        def files(path: Path) -> None:
            for name in (
                "model.safetensors",
                "config.json",
                "optimizer_state_dict.pt",
                "training_state.json",
            ):
                (path / name).write_text("{}")
            (path / "val_metrics.json").write_text(f'{{"loss_epoch": {loss}}}')

        return files

    folder.save(0, None, write(0.5))
    folder.point_best(folder.save(1, 3, write(0.25)))
    assert os.readlink(folder.path / "checkpoint_best") == "1.3"
    folder.save(1, None, write(0.375))
    folder.point_best()
    folder.prune(None)
    assert os.readlink(folder.path / "checkpoint_best") == "1.3" and (folder.path / "1.3").is_dir()


@pytest.mark.parametrize(
    ("before", "now", "fine"), [(None, 5, False), (5, 4, False), (5, 5, True), (5, 6, True), (5, None, True)]
)
def test_the_limit_may_grow(tmp_path: Path, before: int | None, now: int | None, fine: bool) -> None:
    (tmp_path / "training").mkdir()
    text = "null" if before is None else str(before)
    (tmp_path / "training" / "run.json").write_text(f'{{"max_steps": {text}}}')
    if fine:
        compare_facts(Checkpoint(tmp_path, 0, None), {"max_steps": now})
    else:
        with pytest.raises(RunError, match=f"max_steps: {now} here, {before} in "):
            compare_facts(Checkpoint(tmp_path, 0, None), {"max_steps": now})
