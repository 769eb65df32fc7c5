"""Every key of a config and every kind of tensor, changed in each way that files get changed."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

from plugin.training.draft.config import DraftConfig

Config = dict[str, Any]
Tensors = dict[str, torch.Tensor]

WRONG = ("x", "", [], {}, None, True, 1.5, 0, -1, 2**40, 1e30, float("nan"), float("inf"))
"""Values put in the place of every key's own."""


def changed_values(value: object) -> Iterator[object]:
    """What a value may become, itself apart."""
    changes = [*WRONG]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        changes += [-value, value * 2, value + 1, str(value)]
    if isinstance(value, bool):
        changes.append(not value)
    if isinstance(value, list):
        changes += [value[:-1], value[::-1], value * 2, value[0] if value else 1, [str(one) for one in value]]
    for change in changes:
        if type(change) is not type(value) or change != value:
            yield change


def config_mutations(config: Config, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str, Config]]:
    """What was done, and a whole config with that done: each key dropped, renamed and given other values."""
    here: Any = _at(config, path)
    keys = list(here) if isinstance(here, dict) else range(len(here))
    for key in keys:
        name = ".".join(map(str, (*path, key)))
        if isinstance(here, dict):
            yield f"{name} dropped", _put(config, path, key)
            yield f"{name} renamed", _put(config, path, key, rename=True)
        for change in changed_values(here[key]):
            yield f"{name} = {change!r}", _put(config, path, key, change)
        if isinstance(here[key], (dict, list)):
            yield from config_mutations(config, (*path, key))


def _at(config: Config, path: tuple[str | int, ...]) -> Any:
    found: Any = config
    for key in path:
        found = found[key]
    return found


_DROP = object()


def _put(
    config: Config, path: tuple[str | int, ...], key: Any, value: object = _DROP, rename: bool = False
) -> Config:
    result = copy.deepcopy(config)
    place = _at(result, path)
    if value is not _DROP:
        place[key] = value
        return result
    old = place.pop(key)
    if rename:
        place[f"{key}_"] = old
    return result


def without_a_reader(config: Config, same: Callable[[Config], bool]) -> Config:
    """A config with every value changed that can be without `same` becoming false, all at once."""
    for *path, key in list(_leaves(config)):
        place = _at(config, tuple(path))
        for value in changed_values(place[key]):
            if same(changed := _put(config, tuple(path), key, value)):
                config = changed
                break
    return config


def _leaves(config: Config, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    here: Any = _at(config, path)
    for key in list(here) if isinstance(here, dict) else range(len(here)):
        if isinstance(here[key], (dict, list)):
            yield from _leaves(config, (*path, key))
        else:
            yield (*path, key)


def trained_shape(config: Config, draft_vocab_size: int) -> DraftConfig:
    """What the training code makes of a config, whose defaults it does not know."""
    layers = copy.deepcopy(config["transformer_layer_config"])
    layers["rope_parameters"].setdefault("rope_theta", layers.get("rope_theta"))
    return DraftConfig.from_json(
        {**config, "draft_vocab_size": draft_vocab_size, "transformer_layer_config": layers}
    )


def tensor_kinds(tensors: Tensors) -> list[str]:
    """One name of each kind: of the layers, the last."""
    kinds = {re.sub(r"\.\d+\.", ".*.", name): name for name in sorted(tensors)}
    return list(kinds.values())


def tensor_mutations(tensors: Tensors, name: str) -> Iterator[tuple[str, Tensors]]:
    """What was done to the tensor `name`, and all tensors with that done."""
    tensor = tensors[name]
    rest = {other: one for other, one in tensors.items() if other != name}
    yield f"{name} dropped", rest
    yield f"{name} renamed", {**rest, f"{name}_": tensor}
    yield f"{name} of another type", {**rest, name: tensor.to(torch.int16)}
    yield f"{name} cut", {**rest, name: tensor[:-1].contiguous()}
    yield f"{name} of one more dimension", {**rest, name: tensor[None].contiguous()}
    yield f"{name} zero", {**rest, name: torch.zeros_like(tensor)}
    if tensor.is_floating_point():
        for value in (float("nan"), float("inf"), float("-inf")):
            odd = tensor.clone()
            odd.view(-1)[odd.numel() // 2] = value
            yield f"{name} with a {value}", {**rest, name: odd}
        yield f"{name} huge", {**rest, name: tensor * 1e30}
    if tensor.dtype != torch.bool:
        yield f"{name} of the other sign", {**rest, name: -tensor}
    else:
        yield f"{name} negated", {**rest, name: ~tensor}
