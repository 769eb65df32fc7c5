"""Writing a draft as a Speculators checkpoint folder, with the papers that say how it came to be."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file

from plugin.drafts.families import FAMILIES
from plugin.training.draft.config import DraftConfig
from plugin.training.draft.model import DraftModel
from plugin.training.run.trainer import TrainingState

SPECULATORS_VERSION: Final = "0.3.0"

_CONFIG_PY: Final = '''"""Lets transformers read this folder's config.json with remote code allowed."""

from transformers import PreTrainedConfig


class {name}(PreTrainedConfig):
    """A {family} draft in Speculators format; its fields are those of config.json."""

    model_type = "speculator_model"
    speculators_model_type = "{family}"
'''


def draft_tensors(model: DraftModel, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The checkpoint's tensors by name; floating point ones in `dtype`, `t2d` bool and `d2t` int64."""
    tensors = {}
    for name, tensor in model.state_dict().items():
        tensor = tensor.detach().cpu()
        tensors[name] = (tensor.to(dtype) if tensor.is_floating_point() else tensor).contiguous()
    return tensors


def write_draft(
    folder: Path,
    model: DraftModel,
    verifier: str,
    verifier_softcap: float | None,
    metrics: Mapping[str, float],
    state: TrainingState,
    command: str,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Writes model.safetensors, config.json, config.py, training_state.json, train_command.txt and, where there was a
    validation set, val_metrics.json into `folder`, which is made if need be.

    `verifier` is the hub id or the path relative to `folder` that config.json names. Raises `ValueError` naming the
    tensor when one holds a value that is not finite.
    """
    tensors = draft_tensors(model, dtype)
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ValueError(
                f"{folder.name}: tensor {name} holds values that are not finite; nothing was written"
            )
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    # safetensors writes for the user alone; the folder is to be served by others, too.
    (folder / "model.safetensors").chmod(0o644)
    config: DraftConfig = model.config
    written = config.to_json(
        verifier, verifier_softcap, str(dtype).removeprefix("torch."), SPECULATORS_VERSION
    )
    write_json(folder / "config.json", {**written, "transformers_version": metadata.version("transformers")})
    class_text = _CONFIG_PY.format(name=FAMILIES[config.family].config_class, family=config.family)
    (folder / "config.py").write_text(class_text)
    write_json(folder / "training_state.json", asdict(state))
    (folder / "train_command.txt").write_text(command)
    if metrics:
        write_json(folder / "val_metrics.json", dict(metrics))


def read_draft(folder: Path) -> DraftModel:
    """The draft in `folder`, in float32 on the CPU, in evaluation mode."""
    config = DraftConfig.from_json(json.loads((folder / "config.json").read_text()))
    tensors = load_file(folder / "model.safetensors")
    model = DraftModel(config, tensors["embed_tokens.weight"].float(), tensors["t2d"], tensors["d2t"])
    model.load_state_dict(tensors)
    return model.eval()


def read_state(folder: Path) -> TrainingState:
    """The training state of the checkpoint in `folder`."""
    return TrainingState(**json.loads((folder / "training_state.json").read_text()))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """`value` as indented JSON; a NaN is refused rather than written."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n")


def train_command(command: str, facts: Mapping[str, Any], device: torch.device) -> str:
    """The text of train_command.txt: the resolved command, then facts, versions and hardware, one a line."""
    hardware = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"CPU, {torch.get_num_threads()} threads"
    )
    versions = {name: metadata.version(name) for name in ("transformers", "tokenizers", "safetensors")}
    lines = {
        **facts,
        "hardware": hardware,
        "python": platform.python_version(),
        "torch": torch.__version__,
        **versions,
    }
    return "\n".join([command, "", *(f"{name}: {value}" for name, value in lines.items())]) + "\n"
