"""What stands beside the weights of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import T5Gemma2ForConditionalGeneration

from plugin.training.data.samples import Sample
from plugin.training.draft.model import TrainableDraft
from plugin.training.run.checkpoint import RunMetadata, train_command, write_checkpoint
from plugin.training.run.trainer import DraftTrainer, TrainingState
from plugin.training.settings import DraftSettings
from plugin.training.verifier.extraction import Extractor

METRICS = {"loss_epoch": 0.5, "full_acc_epoch": 0.75, "position_1_acc_epoch": 0.9}
METADATA = RunMetadata("owner/verifier", None, "the command\n", "exec it")


@pytest.fixture
def trainer(
    make_draft: Callable[..., TrainableDraft], verifier: T5Gemma2ForConditionalGeneration
) -> DraftTrainer:
    extractor = Extractor(verifier, (0, 2, 5))
    return DraftTrainer(make_draft("dflash"), extractor, DraftSettings(), [Sample([2], [5, 6, 1])])


def test_metadata_stands_beside_the_weights(trainer: DraftTrainer, tmp_path: Path) -> None:
    trainer.state = TrainingState(5, 10, 60)
    write_checkpoint(tmp_path, trainer, METADATA, METRICS, tmp_path)
    assert json.loads((tmp_path / "val_metrics.json").read_text()) == METRICS
    state = json.loads((tmp_path / "training_state.json").read_text())
    assert state == {"epoch": 5, "local_step": 10, "global_step": 60}
    assert (tmp_path / "train_command.txt").read_text() == "the command\n"


def test_without_validation_there_is_no_metrics_file(trainer: DraftTrainer, tmp_path: Path) -> None:
    """A run without a validation set leaves no file of metrics rather than an empty one (F16)."""
    write_checkpoint(tmp_path, trainer, METADATA, {}, tmp_path)
    assert (tmp_path / "training_state.json").exists() and not (tmp_path / "val_metrics.json").exists()


def test_the_command_stands_with_facts_versions_and_hardware() -> None:
    text = train_command("python -m it --seed 1", {"training samples": 9}, torch.device("cpu"))
    lines = text.splitlines()
    assert lines[0] == "python -m it --seed 1" and "training samples: 9" in lines
    assert any(line.startswith("hardware: CPU") for line in lines)
    assert f"torch: {torch.__version__}" in lines
