"""A draft's own files in the Speculators format: model.safetensors, config.json and the config.py beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from plugin.drafts.families import FAMILIES
from plugin.training.draft.config import DraftConfig
from plugin.training.draft.model import TrainableDraft
from plugin.training.draft.vocabulary import vocabulary_tables

_CONFIG_PY: Final = '''"""Lets transformers read this folder's config.json with remote code allowed."""

from transformers import PreTrainedConfig


class {name}(PreTrainedConfig):
    """A {family} draft in Speculators format; its fields are those of config.json."""

    model_type = "speculator_model"
    speculators_model_type = "{family}"
'''


class DraftError(ValueError):
    """A draft's folder cannot be used; one line naming the file and what is wrong."""


def save_draft(folder: Path, draft: TrainableDraft, verifier: str, verifier_softcap: float | None) -> None:
    """Writes model.safetensors (in bfloat16), config.json and config.py into `folder`, which is made if need be.

    `verifier` is the hub id or the path relative to `folder` that config.json names. Raises `ValueError` naming the
    tensor when one holds a value that is not finite; nothing is written then.
    """
    tensors = {}
    for name, tensor in draft.state_dict().items():
        if tensor.is_floating_point():
            tensor = tensor.bfloat16()
            if not bool(tensor.isfinite().all()):
                raise ValueError(
                    f"{folder.name}: tensor {name} holds values that are not finite; nothing was written"
                )
        tensors[name] = tensor.cpu().contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    # safetensors writes for the user alone; the folder is to be served by others, too.
    (folder / "model.safetensors").chmod(0o644)
    config = draft.config.to_json(verifier, verifier_softcap, "bfloat16")
    write_json(folder / "config.json", {**config, "transformers_version": version("transformers")})
    family = FAMILIES[draft.config.family]
    (folder / "config.py").write_text(_CONFIG_PY.format(name=family.config_class, family=family.name))


def load_draft(folder: Path, table: torch.Tensor | None = None, new_verifier: bool = False) -> TrainableDraft:
    """The draft in `folder`, in float32 and in evaluation mode.

    `table` [vocabulary, hidden] is its verifier's embedding: the draft is then on its device and has its values, which
    the file holds rounded or not at all. Without it the draft is on the CPU, with the file's own. With `new_verifier`
    the file's may be those of an earlier state of the verifier. Raises `DraftError` when config and tensors do not
    fit each other or the verifier.
    """
    config_file, weights = folder / "config.json", folder / "model.safetensors"
    try:
        config = DraftConfig.from_json(json.loads(config_file.read_text()))
    except FileNotFoundError:
        raise DraftError(f"{config_file}: no such file") from None
    except KeyError as error:
        raise DraftError(f"{config_file}: has no {error}") from None
    except (OSError, ValueError, TypeError) as error:
        raise DraftError(f"{config_file}: {error}") from None
    try:
        tensors = load_file(weights)
        if config.draft_vocab_size == config.vocab_size:
            # `speculators` leaves out what says nothing of a draft that knows every token.
            whole = vocabulary_tables(range(config.vocab_size), config.vocab_size)
            tensors = dict(zip(("t2d", "d2t"), whole, strict=True)) | tensors
        if table is None:
            table = tensors["embed_tokens.weight"]
        else:
            _check_verifier(tensors, table.cpu(), new_verifier)
        draft = TrainableDraft(config, table.float(), tensors["t2d"], tensors["d2t"])
        # Both tables are the verifier's own by now; `speculators` writes no embedding, and no head of all tokens.
        tensors |= {name: draft.state_dict()[name] for name in ("embed_tokens.weight", "lm_head.weight")}
        draft.load_state_dict(tensors)
    except KeyError as error:
        raise DraftError(f"{weights}: has no {error}") from None
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise DraftError(f"{weights}: {' '.join(str(error).split())}") from None
    return draft.to(table.device).eval()


def _check_verifier(tensors: Mapping[str, torch.Tensor], table: torch.Tensor, new: bool) -> None:
    """Raises `ValueError` where a stored copy of the verifier's `table` [vocabulary, hidden] is another's, or,
    with `new`, where it cannot be that of an earlier state.
    """
    kept = tensors["t2d"]
    for name, rows in (("embed_tokens.weight", slice(None)), ("lm_head.weight", kept)):
        stored = tensors.get(name)
        if stored is None:
            continue
        if stored.shape[-1] != table.shape[-1] or len(kept) != len(table):
            raise ValueError(f"{name} is not the verifier's; the draft is for another one")
        if not new and not torch.equal(stored, table[rows].to(stored.dtype)):
            raise ValueError(
                f"{name} is not the verifier's; the draft is for another one "
                "(--from with --new-verifier: where the verifier was trained further since)"
            )


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """`value` as indented JSON; a NaN is refused rather than written."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n")
