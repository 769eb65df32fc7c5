"""A checkpoint of a run: the published draft folder with all that training needs to go on exactly from it."""

from __future__ import annotations

import logging
import math
import platform
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch

from plugin.training.draft.checkpoint import save_draft, write_json
from plugin.training.run.folder import OPTIMIZER_STATE, TRAINING_STATE, VAL_METRICS, Checkpoint, RunError
from plugin.training.run.model_card import ModelCard
from plugin.training.run.trainer import DraftTrainer, TrainingState

logger = logging.getLogger(__name__)

SCHEDULER_STATE: Final = "scheduler_state_dict.pt"
TRAIN_COMMAND: Final = "train_command.txt"
RUN_FACTS: Final = "training/run.json"
_MASTER = "master_weight"
_ROWS: Final = ("rows", "accumulate", "processes")
"""Whose product is the packed rows of a step."""
_VERIFIERS: Final = (
    "embed_tokens.weight", "lm_head.weight", "verifier_lm_head.weight", "verifier_norm.weight",
)  # fmt: skip
"""Frozen tensors that `speculators` gives its optimizer, too."""


@dataclass(frozen=True, slots=True)
class RunMetadata:
    """What stands beside the weights of every checkpoint of a run.

    `verifier` is the name that the draft gives it, `softcap` its final_logit_softcapping, `command` the text of
    train_command.txt, `launcher` a shell line that starts the run again, `data` the counts of its data, and `facts` the
    settings that a resumed run must share. `events` is the run's TensorBoard folder, `license` that of the card.
    """

    verifier: str
    softcap: float | None
    command: str
    launcher: str
    data: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    events: Path | None = None
    license: str | None = None


def train_command(command: str, facts: Mapping[str, Any], device: torch.device) -> str:
    """The text of train_command.txt: the resolved command, then facts, versions and hardware, one a line."""
    hardware = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"CPU, {torch.get_num_threads()} threads"
    )
    versions = {name: version(name) for name in ("transformers", "tokenizers", "safetensors")}
    lines = {
        **facts,
        "hardware": hardware,
        "python": platform.python_version(),
        "torch": torch.__version__,
        **versions,
    }
    return "\n".join([command, "", *(f"{name}: {value}" for name, value in lines.items())]) + "\n"


def write_checkpoint(
    folder: Path, trainer: DraftTrainer, metadata: RunMetadata, metrics: Mapping[str, float], final: Path
) -> None:
    """Writes every file of a checkpoint into the empty `folder`, which will be moved to `final`.

    Raises `RunError`, `OSError` or safetensors' error when a file cannot be written, and `ValueError` as `save_draft`.
    """
    save_draft(folder, trainer.draft, metadata.verifier, metadata.softcap)
    write_json(folder / TRAINING_STATE, asdict(trainer.state))
    (folder / TRAIN_COMMAND).write_text(metadata.command)
    if metrics:
        write_json(folder / VAL_METRICS, metrics)
    for name, state in (
        (OPTIMIZER_STATE, _optimizer_state(trainer)),
        (SCHEDULER_STATE, trainer.scheduler.state_dict()),
    ):
        try:
            torch.save(state, folder / name)
        except RuntimeError as error:  # what torch's writer raises where the disk is full
            raise RunError(
                f"{final / name}: cannot be written: {' '.join(str(error).split())[:120]}"
            ) from error
    (folder / "training").mkdir()
    write_json(folder / "training" / "data_config.json", metadata.data)
    write_json(folder / RUN_FACTS, metadata.facts)
    launcher = folder / "training" / "train.sh"
    launcher.write_text(f"#!/bin/sh\n{metadata.launcher}\n")
    launcher.chmod(0o755)
    if metadata.events is not None and metadata.events.is_dir():
        shutil.copytree(metadata.events, folder / "tensorboard")
    else:
        (folder / "tensorboard").mkdir()
    card = ModelCard(
        trainer.draft.config, metadata.verifier, trainer.settings, trainer.state, metrics, metadata.data,
        metadata.license, trainer.processes.count,
    )  # fmt: skip
    (folder / "README.md").write_text(card.text())


def _optimizer_state(trainer: DraftTrainer) -> dict[str, Any]:
    """AdamW's state dict; each parameter's state also holds its float32 master weight, which bfloat16 would round."""
    found: dict[str, Any] = trainer.optimizer.state_dict()
    for index, parameter in enumerate(trainer.trained.values()):
        found["state"][index] = {**found["state"].get(index, {}), _MASTER: parameter.detach()}
    return found


def restore(checkpoint: Checkpoint, trainer: DraftTrainer) -> None:
    """Puts `trainer`, whose draft is the checkpoint's, where the run stood.

    Raises `RunError` naming the file and what does not fit.
    """
    state = checkpoint.state()
    _restore_optimizer(checkpoint.path / OPTIMIZER_STATE, trainer, state["global_step"])
    scheduler = checkpoint.path / SCHEDULER_STATE
    if scheduler.is_file():
        stored = _load(scheduler)
        stored = stored[0] if isinstance(stored, list) and stored else stored
        if stored.get("last_epoch") != state["global_step"]:
            logger.warning(
                "%s: stands at step %s; going on from global_step %d", scheduler, stored.get("last_epoch"),
                state["global_step"],
            )  # fmt: skip
    if checkpoint.local_step is None:
        trainer.go_on(TrainingState(checkpoint.epoch + 1, 0, state["global_step"]))
    else:
        if (state["epoch"], state["local_step"]) != (checkpoint.epoch, checkpoint.local_step):
            raise RunError(f"{checkpoint.path}: training_state.json stands at {state}, which is not its name")
        trainer.go_on(TrainingState(checkpoint.epoch, checkpoint.local_step, state["global_step"]))


def _restore_optimizer(file: Path, trainer: DraftTrainer, steps: int) -> None:
    """`steps` were taken, which `speculators` rounds to bfloat16 as it does all else."""
    states = _states_by_name(file, trainer)
    trained = set(trainer.trained)
    if other := sorted((set(states) ^ trained) - set(_VERIFIERS)):
        raise RunError(f"{file}: the tensor {other[0]} is in only one of optimizer state and draft")
    ordered: dict[int, dict[str, Any]] = {}
    anew = []
    for index, (name, parameter) in enumerate(trainer.trained.items()):
        found = dict(states[name])
        for key, value in found.items():
            if isinstance(value, torch.Tensor) and value.dim() and value.shape != parameter.shape:
                raise RunError(
                    f"{file}: {key} of {name} has shape {list(value.shape)}, the draft's is {list(parameter.shape)}"
                )
        master = found.pop(_MASTER, None)
        if master is not None:
            with torch.no_grad():
                parameter.copy_(master)
        if found and "exp_avg_sq" not in found:
            anew.append(name)
        elif found:
            step = found["step"]
            rounded = isinstance(step, torch.Tensor) and step.dtype != torch.float32
            ordered[index] = {**found, "step": torch.tensor(float(steps))} if rounded else found
    if anew:
        logger.warning(
            "%s: has another optimizer's state for %d of %d tensors, as of Muon; AdamW begins anew there",
            file, len(anew), len(trained),
        )  # fmt: skip
    groups = trainer.optimizer.state_dict()["param_groups"]
    trainer.optimizer.load_state_dict({"state": ordered, "param_groups": groups})


def _states_by_name(file: Path, trainer: DraftTrainer) -> dict[str, dict[str, Any]]:
    """The states in `file`, of one optimizer or of several, such as `speculators`' Muon and AdamW, by tensor."""
    stored = _load(file)
    found: dict[str, dict[str, Any]] = {}
    try:
        for one in stored if isinstance(stored, list) else [stored]:
            (group,) = one["param_groups"]
            names = group.get("param_names") or list(trainer.trained)
            for name, index in zip(names, group["params"], strict=True):
                found[name] = one["state"].get(index, {})
    except (KeyError, ValueError, TypeError) as error:
        raise RunError(f"{file}: not the state of AdamW over this draft's tensors ({error})") from None
    return found


def _load(file: Path) -> Any:
    try:
        value = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's reader of torn files raises whatever it stumbles over
        raise RunError(f"{file}: cannot be read: {' '.join(str(error).split())[:120]}") from error
    if not isinstance(value, dict | list):
        raise RunError(f"{file}: holds a {type(value).__name__}, not a state dict")
    return value


def compare_facts(checkpoint: Checkpoint, facts: Mapping[str, Any]) -> None:
    """Refuses, with a `RunError` naming the setting, to go on with settings that would make another run of it.

    More epochs or steps than before are allowed: the learning rates after the checkpoint are then those of the longer
    schedule. So is another number of processes with the same rows a step in all, which is equal up to rounding. What a
    checkpoint does not say, as a published one, is not compared.
    """
    stored = checkpoint.json(RUN_FACTS) or {}
    resharded = _rows(stored) == _rows(facts)
    for name, value in facts.items():
        before = stored.get(name)
        if name not in stored or before == value:
            continue
        if name in ("epochs", "max_steps") and (value is None or (before is not None and value > before)):
            logger.warning("%s: %s instead of %s; the learning rates are stretched", name, value, before)
            continue
        if name in _ROWS and resharded:
            logger.warning("%s: %s instead of %s, which makes the same rows a step", name, value, before)
            continue
        raise RunError(
            f"{name}: {value!r} here, {before!r} in {checkpoint.path}; use the same or another --out"
        )


def _rows(facts: Mapping[str, Any]) -> int:
    return math.prod(int(facts.get(name, 1)) for name in _ROWS)
