"""What is checked is what vLLM loads: of a folder's files the same ones, for a verifier and for a draft (N04, N05)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from plugin.drafts.checkpoint import CheckpointError
from plugin.drafts.safetensors_header import loaded_files, read_tensors
from tests.plugin.drafts.folders import draft_arrays, write_draft, write_verifier

Write = Callable[[Path], Path]


def vllm_loads(folder: Path) -> set[str]:
    """The files that vLLM's own loader takes from a folder, told what our models tell it."""
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    loader = DefaultModelLoader(LoadConfig())
    _, files, _, _ = loader._prepare_weights(str(folder), None, None, False, loaded_files(folder))
    return {Path(file).name for file in files}


def checked(folder: Path) -> set[str]:
    return {tensor.file.name for tensor in read_tensors(folder).values()}


def shard(folder: Path) -> Path:
    """The folder with two shards and their index instead of `model.safetensors`."""
    arrays = list(draft_arrays().items())
    parts = {"model-1-of-2.safetensors": dict(arrays[::2]), "model-2-of-2.safetensors": dict(arrays[1::2])}
    for name, part in parts.items():
        save_file(part, folder / name)
    index = {"weight_map": {tensor: name for name, part in parts.items() for tensor in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()
    return folder


@pytest.mark.parametrize("write", [write_verifier, write_draft])
@pytest.mark.parametrize(
    "stray", ["zz_backup", "optimizer", "consolidated", "adapter_model", "model-00001-of-00002"]
)
def test_n04_other_safetensors_files_are_not_loaded(tmp_path: Path, write: Write, stray: str) -> None:
    """A backup, an optimizer's state, a consolidated copy: beside `model.safetensors` none of them counts."""
    folder = write(tmp_path / "c")
    save_file({"norm.weight": np.ones(8, np.float32)}, folder / f"{stray}.safetensors")
    assert checked(folder) == vllm_loads(folder) == {"model.safetensors"}


def test_n04_strays_beside_shards(tmp_path: Path) -> None:
    folder = shard(write_draft(tmp_path / "d"))
    save_file({"norm.weight": np.ones(8, np.float32)}, folder / "optimizer.safetensors")
    assert checked(folder) == vllm_loads(folder) == {"model-1-of-2.safetensors", "model-2-of-2.safetensors"}
    save_file({"norm.weight": np.ones(8, np.float32)}, folder / "consolidated.safetensors")
    with pytest.raises(CheckpointError, match=r"consolidated\.safetensors: vLLM would load it instead"):
        read_tensors(folder)


@pytest.mark.parametrize("write", [write_verifier, write_draft])
def test_n05_an_index_beside_the_whole_file(tmp_path: Path, write: Write) -> None:
    """`model.safetensors` beside an index of shards that are not there: the file is the checkpoint, for both."""
    folder = write(tmp_path / "c")
    index = {"weight_map": {"norm.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert checked(folder) == vllm_loads(folder) == {"model.safetensors"}


@pytest.mark.parametrize("name", ["sub/a.safetensors", "../a.safetensors", "a.bin", ""])
def test_an_index_that_names_other_places(tmp_path: Path, name: str) -> None:
    """vLLM looks beside the index only."""
    folder = write_draft(tmp_path / "d")
    (folder / "sub").mkdir()
    for place in ("sub", ".."):
        shutil.copy(folder / "model.safetensors", folder / place / "a.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"norm.weight": name}}))
    with pytest.raises(CheckpointError, match=r"must be a \.safetensors file beside it"):
        read_tensors(folder)


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    folder = shard(write_draft(tmp_path / "d"))
    arrays = draft_arrays()
    save_file(arrays, folder / "model-2-of-2.safetensors")
    with pytest.raises(
        CheckpointError, match=r"model-2-of-2\.safetensors: holds .*, and so does model-1-of-2"
    ):
        read_tensors(folder)
