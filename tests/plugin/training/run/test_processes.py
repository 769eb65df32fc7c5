"""Several processes are one run: equal to a single one at the same rows a step, and of one mind in everything."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import T5Gemma2ForConditionalGeneration

from plugin.training.data.samples import Sample
from plugin.training.draft.checkpoint import load_draft
from plugin.training.draft.model import TrainableDraft
from plugin.training.run.checkpoint import RunMetadata, compare_facts, restore
from plugin.training.run.evaluation import evaluate
from plugin.training.run.events import Events
from plugin.training.run.folder import Checkpoint, RunError, RunFolder
from plugin.training.run.processes import ALONE, Processes
from plugin.training.run.stop import Interrupted
from plugin.training.run.trainer import DraftTrainer, NotFinite, StepReport, check_finite
from plugin.training.run.training_run import RunOptions, TrainingRun
from plugin.training.settings import DraftSettings
from plugin.training.verifier.extraction import Extractor, VerifierStates
from tests.plugin.training.run.ranks import in_ranks
from tests.plugin.training.run.test_training_run import Recorder

SAMPLES = [Sample([2, 8 + i], [*range(10 + i, 17 + i + i % 5), 1], f"s{i}") for i in range(17)]
SETTINGS = DraftSettings(
    epochs=2, rows=2, total_length=32, response_length=24, max_anchors=6, peak_rate=3e-3, warmup=0.3,
    precision="float32",
)  # fmt: skip
METADATA = RunMetadata("owner/verifier", None, "the command\n", "exec it", {"pairs": 17}, {"seed": 42})
MakeDraft = Callable[..., TrainableDraft]
Verifier = T5Gemma2ForConditionalGeneration


def _trainer(
    draft: TrainableDraft, verifier: Verifier, processes: Processes = ALONE, **fields: object
) -> DraftTrainer:
    settings = dataclasses.replace(SETTINGS, **fields)  # type: ignore[arg-type]
    extractor = Extractor(verifier, draft.config.aux_hidden_state_layer_ids)
    return DraftTrainer(draft, extractor, settings, SAMPLES, processes)


def _run(trainer: DraftTrainer, folder: Path, at: Callable[[int], None] = lambda _: None) -> Recorder:
    rows = Recorder(at)
    run = TrainingRun(
        trainer, RunFolder(folder), METADATA, SAMPLES[:5], RunOptions(), Events(None), rows  # type: ignore[arg-type]
    )  # fmt: skip
    run()
    return rows


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_draft(folder).state_dict()


@pytest.mark.parametrize("fields", [{}, {"rows": 1, "accumulate": 2, "short_blocks": 0.5}])
@pytest.mark.parametrize("family", ["dspark", "dflare"])
def test_two_processes_equal_one_with_the_same_rows_a_step(
    make_draft: MakeDraft, verifier: Verifier, family: str, fields: dict[str, Any]
) -> None:
    """Losses, gradient norms, metrics and weights to 1e-5, with last steps that leave a process without rows."""

    def work(processes: Processes) -> tuple[list[float], list[float], dict[str, float], torch.Tensor]:
        alone = {} if processes.count == 2 else {"accumulate": 4 // fields.get("rows", 2)}
        trainer = _trainer(make_draft(family), verifier, processes, **{**fields, **alone})
        reports: list[StepReport] = []
        while not trainer.done:
            reports += list(trainer.steps())
            trainer.next_epoch()
        losses = check_finite(reports, processes)
        assert len(reports[-1].ids) < len(reports[0].ids), "no step is smaller than the others"
        weights = torch.cat([tensor.detach().flatten() for tensor in trainer.trained.values()])
        norms = [float(report.gradient_norm) for report in reports]
        return losses, norms, evaluate(trainer, SAMPLES), weights

    one = work(ALONE)
    first, second = in_ranks(2, work)
    assert first[0] == second[0] and first[2] == second[2] and torch.equal(first[3], second[3])
    assert first[0] == pytest.approx(one[0], abs=1e-5) and first[1] == pytest.approx(one[1], abs=1e-5)
    assert first[2] == pytest.approx(one[2], abs=1e-4)
    assert (first[3] - one[3]).abs().mean() < 1e-5


def test_a_run_of_two_goes_on_exactly_after_a_signal_to_one_of_them(
    make_draft: MakeDraft, verifier: Verifier, tmp_path: Path
) -> None:
    """Both end together, the main one has saved, and the weights become those of a run that was left alone."""

    def work(processes: Processes, folder: str, stop_at: int | None = None) -> str:
        def stop(step: int) -> None:
            if step == stop_at and processes.rank == 1:
                os.kill(os.getpid(), signal.SIGTERM)

        out = RunFolder(tmp_path / folder)
        newest = out.newest()
        draft = (
            load_draft(newest.path, verifier.get_input_embeddings().weight)
            if newest
            else make_draft("dflash")
        )
        trainer = _trainer(draft, verifier, processes)
        if newest:
            restore(newest, trainer)
        try:
            _run(trainer, out.path, stop)
        except Interrupted as error:
            return str(error)
        return "done"

    assert in_ranks(2, lambda processes: work(processes, "whole")) == ["done", "done"]
    said = in_ranks(2, lambda processes: work(processes, "cut", 3))
    assert said[0] == said[1] and "stopped after step 3" in said[0], said
    assert [one.path.name for one in RunFolder(tmp_path / "cut").checkpoints()] == ["0", "1.1"]
    assert in_ranks(2, lambda processes: work(processes, "cut")) == ["done", "done"]
    whole, cut = _weights(tmp_path / "whole" / "1"), _weights(tmp_path / "cut" / "1")
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    assert "packed rows a step | 4 |" in (tmp_path / "whole" / "1" / "README.md").read_text()


def test_what_is_not_finite_in_one_ends_all(make_draft: MakeDraft, verifier: Verifier) -> None:
    """Its sample is named by everybody, in training and in validation."""

    def work(processes: Processes) -> list[str]:
        trainer = _trainer(make_draft("dflash"), verifier, processes)
        extractor, said = trainer.extractor, []

        class Poisoned:
            layer_ids, pad_id, start_id = extractor.layer_ids, extractor.pad_id, extractor.start_id
            logits, greedy_tokens = extractor.logits, extractor.greedy_tokens

            def __call__(
                self, prompts: torch.Tensor, mask: torch.Tensor, tokens: torch.Tensor
            ) -> VerifierStates:
                found = extractor(prompts, mask, tokens)
                found.aux[prompts[:, 1] == SAMPLES[5].prompt[1], 1, 0, 3] = float("inf")
                return found

        trainer.block_step.extractor = Poisoned()  # type: ignore[assignment]
        for attempt in (
            lambda: check_finite(list(trainer.steps()), processes),
            lambda: evaluate(trainer, SAMPLES),
        ):
            with pytest.raises(NotFinite) as error:
                attempt()
            said.append(str(error.value))
        return said

    first, second = in_ranks(2, work)
    assert first == second and first[0].endswith("not finite on s5") and first[1].endswith("not finite on s5")


def test_the_main_process_goes_first_and_its_failure_is_everybodys() -> None:
    def work(processes: Processes) -> list[object]:
        with processes.main_first():
            order = [processes.rank]
        try:
            with processes.main_first():
                assert processes.main, "the other one must not come here"
                raise ValueError("no")
        except (ValueError, SystemExit) as error:
            return [
                order,
                type(error).__name__,
                processes.any(processes.rank == 1),
                processes.gathered(processes.rank),
            ]
        return []

    first, second = in_ranks(2, work)
    assert first == [[0], "ValueError", True, [0, 1]] and second == [[1], "SystemExit", True, [0, 1]]
    assert ALONE.any(True) and not ALONE.any(False) and ALONE.gathered(3) == [3] and ALONE.launcher == ""


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ({"rows": 4}, {"rows": 2, "processes": 2}, None),
        ({"rows": 2, "processes": 2}, {"rows": 2, "accumulate": 2, "processes": 1}, None),
        ({"rows": 2, "processes": 2}, {"rows": 2, "processes": 4}, "processes: 4 here, 2 in "),
        ({"rows": 4}, {"rows": 4, "processes": 2}, "processes: 2 here, 1 in "),
    ],
)
def test_another_number_of_processes(
    tmp_path: Path, before: dict[str, int], now: dict[str, int], words: str | None
) -> None:
    """Goes on where the rows of a step stay the same in all, and is refused where they do not."""
    whole = {"rows": 1, "accumulate": 1, "processes": 1}
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "run.json").write_text(str({**whole, **before}).replace("'", '"'))
    checkpoint = Checkpoint(tmp_path, 0, None)
    if words is None:
        compare_facts(checkpoint, {**whole, **now})
    else:
        with pytest.raises(RunError, match=words):
            compare_facts(checkpoint, {**whole, **now})
