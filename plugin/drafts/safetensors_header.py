"""Reading a checkpoint's tensor list without its tensors: 8 bytes of length, then JSON (the safetensors
format).

A cut download, a Git LFS pointer or a missing shard is found here in milliseconds, before any memory is
taken.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from plugin.drafts.facts import CheckpointError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2}
_BYTES |= {"I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8}
_NUMPY = {"BOOL": np.bool_, "I32": np.int32, "I64": np.int64}
_MAX_HEADER = 100_000_000


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a file: `dtype` in the format's own words (BF16, I64, ...), `start` in bytes from file
    begin.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int

    def read(self) -> npt.NDArray[Any]:
        """The values of a small bool, int32 or int64 tensor."""
        count = prod(self.shape)
        flat: npt.NDArray[Any] = np.fromfile(self.file, _NUMPY[self.dtype], count, offset=self.start)
        return flat.reshape(self.shape)


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Name -> tensor of `model.safetensors`, or of all shards that the index names.

    Raises CheckpointError with the path and, in plain words, what is wrong: missing, incomplete, pointer
    file, shard.
    """
    if (folder / WEIGHTS).exists() or not (folder / INDEX).exists():
        return _read_file(folder / WEIGHTS)
    index = folder / INDEX
    try:
        names: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        shards = sorted(set(names.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{index}: has no readable weight_map") from None
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        if not (folder / shard).is_file():
            raise CheckpointError(
                f"{index}: weight_map names {shard}, which is missing; the download is incomplete"
            )
        tensors |= _read_file(folder / shard)
    for name, shard in names.items():
        if name not in tensors:
            raise CheckpointError(f"{index}: weight_map names {name} in {shard}, which does not hold it")
    return tensors


def _read_file(file: Path) -> dict[str, Tensor]:
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            head = stream.read(8)
            if head == b"version " or (size < 1024 and b"git-lfs" in head + stream.read(64)):
                raise CheckpointError(
                    f"{file}: is a Git LFS pointer file, not the weights; run `git lfs pull`"
                )
            length = int.from_bytes(head, "little")
            if size < 8 or length > size - 8 or length > _MAX_HEADER:
                raise CheckpointError(
                    f"{file}: is incomplete or no safetensors file: its header says {length} bytes, the"
                    f" file has {size}"
                )
            stream.seek(8)
            header = json.loads(stream.read(length))
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{file}: is no safetensors file: its header is no JSON") from None
    return _tensors(file, header, 8 + length, size)


def _tensors(file: Path, header: Any, body: int, size: int) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    try:
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            start, end = entry["data_offsets"]
            tensor = Tensor(file, entry["dtype"], tuple(entry["shape"]), body + start)
            width = _BYTES.get(tensor.dtype)
            if width is not None and end - start != width * prod(tensor.shape):
                raise CheckpointError(
                    f"{file}: {name} is {tensor.dtype} {list(tensor.shape)} but has {end - start} bytes"
                )
            if body + end > size:
                raise CheckpointError(
                    f"{file}: is incomplete: {name} ends at byte {body + end}, the file has {size} bytes"
                )
            tensors[name] = tensor
    except (AttributeError, KeyError, TypeError):
        raise CheckpointError(f"{file}: is no safetensors file: its header has an unknown form") from None
    return tensors
