"""A projection that is left to the norm behind it: the same bits in a launch less, compiled whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from vllm.model_executor.layers.linear import UnquantizedLinearMethod

from plugin.projection import few_tokens
from tests.plugin.attention.interpreted import interpreted_errors


@pytest.fixture(scope="module")
def interpreted() -> dict[str, Any]:
    found: dict[str, Any] = interpreted_errors("tests.plugin.projection.deferred_cases")
    return found


@pytest.mark.parametrize("way", ["decoder", "draft"])
def test_in_parts_the_norm_adds_them_up(interpreted: dict[str, Any], way: str) -> None:
    facts = interpreted[way]["in parts"]
    assert facts["error"] == 0
    assert facts["largest"] > 0.1
    assert (facts["left: shares"], facts["left: sums"]) == (1, 0)
    assert (facts["apart: shares"], facts["apart: sums"]) == (1, 1)


@pytest.mark.parametrize("way", ["decoder", "draft"])
def test_many_tokens_stay_with_pytorch(interpreted: dict[str, Any], way: str) -> None:
    facts = interpreted[way]["by PyTorch"]
    assert facts["error"] == 0
    assert facts["largest"] > 0.1
    assert facts["left: shares"] == facts["apart: shares"] == 0


def test_without_cuda_nothing_is_left() -> None:
    weight = torch.randn(3, 4)
    layer: Any = torch.nn.Module()
    layer.bias, layer.quant_method = None, UnquantizedLinearMethod()
    layer.weight = weight
    layer.forward = lambda x: (x @ weight.T, None)
    x = torch.randn(2, 4)
    found = few_tokens.deferred(layer, x)
    assert isinstance(found, torch.Tensor)
    assert torch.equal(found, x @ weight.T)
