"""Norm, addition and norm in one launch: by Triton's interpreter everywhere, on the device with `-m gpu`."""

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.layernorm import RMSNorm

from plugin.projection.residual_norm import ResidualNorm
from plugin.projection.triton_residual_norm import norm_add_norm
from tests.plugin.attention.interpreted import interpreted_errors
from tests.plugin.projection.residual_norm_cases import (
    DTYPES,
    WIDTHS,
    control,
    worst_error,
    worst_plain_error,
)

ULPS = 4
"""Of the largest value: a sum in another order, and one rounding more or less of the norm's factor."""


@pytest.fixture
def vllm_config():
    """vLLM's layers are made under one."""
    config = VllmConfig()
    with set_current_vllm_config(config):
        yield config


@pytest.fixture(scope="module")
def interpreted() -> dict:
    return interpreted_errors("tests.plugin.projection.residual_norm_cases")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rounded", [False, True])
def test_equals_the_two_norms_one_after_another(interpreted, width, dtype, rounded):
    assert interpreted["errors"][f"{width} {dtype} {rounded}"] < ULPS


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_without_a_first_norm_it_is_an_addition_and_a_norm(interpreted, width, dtype):
    assert interpreted["plain"][f"{width} {dtype}"] < ULPS


def test_control_a_forgotten_residual_is_seen(interpreted):
    assert interpreted["control"] > 0.1


def test_without_cuda_a_drafts_norm_is_vllms(vllm_config):
    norm, stock = (kind(64, eps=1e-6) for kind in (ResidualNorm, RMSNorm))
    x, residual = torch.randn(2, 5, 64)
    assert torch.equal(norm(x), stock(x))
    for got, want in zip(norm(x.clone(), residual.clone()), stock(x.clone(), residual.clone()), strict=True):
        assert torch.equal(got, want)


def test_refuses_what_is_not_rows():
    with pytest.raises(ValueError, match="not two of rows"):
        norm_add_norm(torch.zeros(4, 6).t(), torch.zeros(6, 4), torch.zeros(4), torch.zeros(4), 1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [*WIDTHS, 2560])
@pytest.mark.parametrize("rounded", [False, True])
def test_gpu_equals_the_two_norms_one_after_another(width, dtype, rounded):
    assert worst_error(width, DTYPES[dtype], "cuda", rounded=rounded) < ULPS
    assert worst_plain_error(width, DTYPES[dtype], "cuda") < ULPS
    assert control("cuda") > 0.1


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_gpu_a_drafts_norm_equals_vllms(dtype, vllm_config):
    with torch.device("cuda"):
        norm = ResidualNorm(1152, eps=1e-6, dtype=dtype)
        x, residual = torch.randn(2, 9, 1152, dtype=dtype)
    norm.weight.data.normal_()
    for got, want in zip(norm(x, residual), norm.forward_native(x.clone(), residual.clone()), strict=True):
        error = float((got - want).abs().max() / want.abs().max())
        assert error < ULPS * torch.finfo(dtype).eps
