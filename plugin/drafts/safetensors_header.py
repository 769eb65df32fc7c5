"""A checkpoint's tensor list without its tensors, from the headers of its safetensors files.

A cut download, a Git LFS pointer or a missing shard is found here in milliseconds, before any memory is taken.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from plugin.drafts.facts import CheckpointError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

_POINTER = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a file; `dtype` in the format's own words (BF16, I64, ...)."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]

    def read(self) -> npt.NDArray[Any]:
        """The values, of any type but BF16, which NumPy lacks."""
        with safe_open(self.file, framework="numpy") as stored:
            return stored.get_tensor(self.name)


def loaded_files(model: str | Path) -> list[str] | None:
    """The file names that vLLM is to load from a folder, for `allow_patterns_overrides` of a model; None: its own rule.

    Left to itself, vLLM loads every `*.safetensors` of a folder without an index, one over the other (a backup, an
    optimizer's state), and of one with an index and `model.safetensors` the index's. Here, as in transformers, a
    `model.safetensors` is the whole checkpoint; without one vLLM loads exactly the index's shards.

    Unnecessary once vLLM prefers `model.safetensors`.
    """
    return [WEIGHTS] if Path(model, WEIGHTS).is_file() else None


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Name -> tensor of `model.safetensors`, else of all shards that the index names: what is loaded (`loaded_files`).

    Raises:
        CheckpointError: the path and, in plain words, what is wrong: missing, incomplete, pointer file, shard.
    """
    if (folder / WEIGHTS).exists() or not (folder / INDEX).exists():
        return _read_file(folder / WEIGHTS)
    index = folder / INDEX
    try:
        names: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        shards = sorted({str(shard) for shard in names.values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{index}: has no readable weight_map") from None
    for stray in sorted(folder.glob("consolidated*.safetensors")):
        raise CheckpointError(
            f"{stray}: vLLM would load it instead of the shards of {INDEX}; move it elsewhere"
        )
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise CheckpointError(f"{index}: weight_map names {shard}; must be a .safetensors file beside it")
        if not (folder / shard).is_file():
            raise CheckpointError(
                f"{index}: weight_map names {shard}, which is missing; the download is incomplete"
            )
        held = _read_file(folder / shard)
        for name in held.keys() & tensors.keys():
            raise CheckpointError(f"{folder / shard}: holds {name}, and so does {tensors[name].file.name}")
        tensors |= held
    for name, shard in names.items():
        if name not in tensors:
            raise CheckpointError(f"{index}: weight_map names {name} in {shard}, which does not hold it")
    return tensors


def _read_file(file: Path) -> dict[str, Tensor]:
    try:
        with file.open("rb") as stream:
            begin, size = stream.read(len(_POINTER)), stream.seek(0, os.SEEK_END)
        if begin == _POINTER:
            raise CheckpointError(f"{file}: is a Git LFS pointer file, not the weights; run `git lfs pull`")
        with safe_open(file, framework="numpy") as stored:
            slices = {name: stored.get_slice(name) for name in stored.keys()}  # noqa: SIM118
            return {
                name: Tensor(file, name, s.get_dtype(), tuple(s.get_shape())) for name, s in slices.items()
            }
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror or error}") from None
    except SafetensorError as error:
        raise CheckpointError(
            f"{file}: is incomplete or no safetensors file ({size} bytes): {error}"
        ) from None
