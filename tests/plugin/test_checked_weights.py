"""Tensors that no training leaves behind, refused by name while they are loaded (N06)."""

from __future__ import annotations

import pytest
import torch

from plugin.checked_weights import checked
from plugin.drafts.facts import CheckpointError
from plugin.drafts.tensors import never_zero

CPU = torch.device("cpu")


def look(**tensors: torch.Tensor) -> dict[str, torch.Tensor]:
    named = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    return dict(checked(named.items(), CPU, lambda name, _: never_zero(name)))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_value_that_is_not_finite(value: float, dtype: torch.dtype) -> None:
    tensor = torch.ones(7, 5, dtype=dtype)
    tensor[3, 4] = value
    with pytest.raises(CheckpointError, match=r"fc\.weight holds values that are not finite"):
        look(norm__weight=torch.ones(3), fc__weight=tensor)


def test_zeros() -> None:
    """Where training starts from zeros they are fine: biases, the Markov head, the shares of the taps."""
    fine = ("layer_fusion_weights", "markov_head__markov_w2__weight", "confidence_head__proj__bias")
    look(**{name: torch.zeros(2, 3) for name in fine}, d2t=torch.zeros(4, dtype=torch.long))
    for name in ("fc__weight", "norm__weight", "layers__0__self_attn__k_proj__weight"):
        with pytest.raises(CheckpointError, match="is all zero"):
            look(**{name: torch.zeros(2, 3)})


def test_a_name_that_comes_twice() -> None:
    """Two files that hold one tensor: the later would win."""
    twice = [("fc.weight", torch.ones(2)), ("fc.weight", torch.ones(2))]
    with pytest.raises(CheckpointError, match="stands in two"):
        list(checked(twice, CPU, lambda name, _: True))


def test_what_is_sound_passes_unchanged() -> None:
    tensors = {"fc__weight": torch.randn(3, 2), "t2d": torch.tensor([True]), "empty": torch.empty(0)}
    found = look(**tensors)
    assert [id(t) for t in found.values()] == [id(t) for t in tensors.values()]
