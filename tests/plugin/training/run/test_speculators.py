"""Folders of the package `speculators` 0.9 continue here, and those written here load there (N34).

`speculators_0_9.json` describes what that package wrote: DFlash and DSpark for the demo's verifier after one step, by
AdamW and by Muon. The last test, with the package itself, runs where it is installed.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from app.cli import main
from plugin.training.data.pairs import Pair
from plugin.training.data.problems.generate import take
from plugin.training.data.samples import Sample, encode
from plugin.training.draft.checkpoint import DraftError, load_draft
from plugin.training.draft.config import DraftConfig
from plugin.training.draft.model import TrainableDraft
from plugin.training.draft.vocabulary import draft_vocabulary
from plugin.training.run.checkpoint import restore
from plugin.training.run.folder import RunFolder
from plugin.training.run.trainer import DraftTrainer
from plugin.training.settings import DraftSettings
from plugin.training.verifier.extraction import Extractor
from plugin.training.verifier.frozen_verifier import FrozenVerifier

DEMO = Path(__file__).parents[4] / "plugin" / "demo"
DESCRIBED: dict[str, Any] = json.loads(Path(__file__).with_name("speculators_0_9.json").read_text())[
    "families"
]
STEPS = 301
"""bfloat16 has 300 and 302, but not this."""
FROZEN = {"embed_tokens.weight", "lm_head.weight", "verifier_lm_head.weight", "verifier_norm.weight"}


@pytest.fixture(scope="module")
def verifier() -> FrozenVerifier:
    return FrozenVerifier.load(str(DEMO / "verifier"), torch.device("cpu"))


def _write(folder: Path, family: str, kind: str, verifier: FrozenVerifier) -> None:
    """A folder as described, with random values."""
    described = DESCRIBED[family]
    config = DraftConfig.from_json(described["config"])
    tables = draft_vocabulary([range(8, 300)], config.vocab_size, config.draft_vocab_size)
    torch.manual_seed(0)
    draft = TrainableDraft(config, verifier.table, *tables)
    tensors = {
        name: tensor.bfloat16() if tensor.is_floating_point() else tensor
        for name, tensor in draft.state_dict().items()
        if name in described["tensors"]
    }
    assert sorted(tensors) == described["tensors"], "a tensor that this code does not know"
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(described["config"]))
    (folder / "training_state.json").write_text(
        json.dumps({"epoch": 0, "local_step": 0, "global_step": STEPS})
    )
    shapes = {name: parameter.shape for name, parameter in draft.named_parameters()}
    stored = []
    for group in described["optimizers"][kind]:
        states = {}
        for keys, numbers in group["states"].items():
            for number in numbers:
                shape = shapes[group["param_names"][number]]
                states[number] = {
                    key: torch.tensor(STEPS).bfloat16() if key == "step" else torch.rand(shape).bfloat16()
                    for key in keys.split(",")
                }
        numbers = list(range(len(group["param_names"])))
        groups = [{"param_names": group["param_names"], "params": numbers}]
        stored.append({"state": states, "param_groups": groups})
    torch.save(stored if len(stored) > 1 else stored[0], folder / "optimizer_state_dict.pt")


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("family", list(DESCRIBED))
def test_a_folder_of_the_package_continues(
    verifier: FrozenVerifier, tmp_path: Path, family: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no embedding and an optimizer over frozen tensors, too; DSpark samples from the anchor by default."""
    _write(tmp_path / "0", family, kind, verifier)
    names = DESCRIBED[family]["optimizers"][kind][0]["param_names"]
    assert kind == "muon" or set(names) >= FROZEN, "nothing frozen in the optimizer"
    newest = RunFolder(tmp_path).newest()
    assert newest is not None
    draft = load_draft(newest.path, verifier.table)
    assert torch.equal(draft.embed_tokens.weight, verifier.table)
    assert draft.config.draft_length == (8 if family == "dspark" else 7)
    extractor = Extractor(verifier.model, draft.config.aux_hidden_state_layer_ids)
    samples = verifier_samples(verifier)
    trainer = DraftTrainer(draft, extractor, DraftSettings(epochs=2, precision="float32"), samples)
    with caplog.at_level(logging.WARNING):
        restore(newest, trainer)
    assert (trainer.state.epoch, trainer.state.global_step) == (1, STEPS)
    kept = {
        name for name, parameter in trainer.trained.items() if "exp_avg" in trainer.optimizer.state[parameter]
    }
    assert all(state["step"] == STEPS for state in trainer.optimizer.state.values() if state)
    if kind == "adamw":
        assert kept == set(trainer.trained)
    else:
        assert kept == set(trainer.trained) - set(names) and kept
        assert f"another optimizer's state for {len(names)} of {len(trainer.trained)} tensors" in caplog.text
    list(trainer.steps())
    assert trainer.state.global_step == STEPS + trainer.epoch_steps[1]


def verifier_samples(verifier: FrozenVerifier) -> list[Sample]:
    pairs = [Pair(problem.question, problem.answer) for problem in take(5, "train", 4)]
    return encode(verifier.tokenizer, pairs, verifier.end_id)


def test_another_verifiers_folder_is_told_by_its_head(verifier: FrozenVerifier, tmp_path: Path) -> None:
    """Where there is no embedding, the head's rows tell."""
    _write(tmp_path / "0", "dflash", "adamw", verifier)
    with pytest.raises(DraftError, match=r"lm_head.weight is not the verifier's"):
        load_draft(tmp_path / "0", verifier.table + 1.0)


def test_a_draft_that_knows_every_token_has_no_tables(verifier: FrozenVerifier, tmp_path: Path) -> None:
    """The package then writes no head, either."""
    _write(tmp_path / "0", "dflash", "adamw", verifier)
    config = DESCRIBED["dflash"]["config"]
    config = {**config, "draft_vocab_size": config["transformer_layer_config"]["vocab_size"]}
    (tmp_path / "0" / "config.json").write_text(json.dumps(config))
    file = tmp_path / "0" / "model.safetensors"
    left = {name: tensor for name, tensor in load_file(file).items() if name[:3] not in ("t2d", "d2t", "lm_")}
    save_file(left, file)
    draft = load_draft(tmp_path / "0", verifier.table)
    assert torch.equal(draft.lm_head.weight, verifier.table)
    assert draft.to_target(torch.arange(9)).tolist() == list(range(9))


@pytest.mark.parametrize("family", ["dflash", "dspark"])
def test_with_the_package_itself(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained here, loaded and saved there from other working directories, and trained here again."""
    package = pytest.importorskip("speculators", reason="the package speculators is not installed")
    from speculators.train.checkpointer import SingleGPUCheckpointer
    from speculators.train.optimizers import build_optimizers

    data = tmp_path / "mine.jsonl"
    rows = [{"prompt": problem.question, "response": problem.answer} for problem in take(5, "train", 12)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(DEMO.parent)

    def train(out: Path, epochs: int, *options: str) -> None:
        words = ["train", family, "--verifier", "demo/verifier", "--data", str(data), "--out", str(out)]
        words += ["--epochs", str(epochs), "--total-length", "128", "--response-length", "96", "--rows", "4"]
        with pytest.raises(SystemExit) as ended:
            main([*words, "--anchors", "4", "--no-tensorboard", "--device", "cpu", *options])
        assert not ended.value.code

    train(tmp_path / "run", 1, "--layers", "1", "--draft-vocab", "256")
    monkeypatch.chdir("/")
    ours = tmp_path / "run" / "checkpoint_best"
    model = package.SpeculatorModel.from_pretrained(str(ours)).float()
    kept, written = model.state_dict(), load_file(ours / "model.safetensors")
    assert set(written) <= set(kept)
    assert set(kept) - set(written) == {"verifier_lm_head.weight", "verifier_norm.weight"}
    assert all(torch.equal(kept[name].to(tensor.dtype), tensor) for name, tensor in written.items())
    assert model.config.sample_from_anchor is False
    for kind in ("adamw", "muon"):
        config = SimpleNamespace(
            optimizer=kind, lr=6e-4, weight_decay=0.01, muon_lr=0.02, muon_momentum=0.95, muon_weight_decay=0.1,
            muon_ns_steps=5, muon_adjust_lr_fn="match_rms_adamw",
        )  # fmt: skip
        optimizers = build_optimizers(model, config)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter) if parameter.requires_grad else None
        for optimizer in optimizers:
            optimizer.step()
        theirs = tmp_path / kind
        SingleGPUCheckpointer(str(theirs)).save_checkpoint(model, optimizers, 0)
        (theirs / "0" / "training_state.json").write_text('{"epoch": 0, "local_step": 0, "global_step": 1}')
        monkeypatch.chdir(DEMO.parent)
        train(theirs, 2)
        monkeypatch.chdir("/")
        assert (theirs / "1" / "model.safetensors").is_file()
