"""Norm, addition and norm in one launch: by Triton's interpreter everywhere, on the device with `-m gpu`."""

import pytest
import torch

from plugin.verifier.triton_residual_norm import norm_add_norm
from tests.plugin.attention.interpreted import interpreted_errors
from tests.plugin.verifier.residual_norm_cases import DTYPES, WIDTHS, control, worst_error

ULPS = 4
"""Of the largest value: a sum in another order, and one rounding more or less of the norm's factor."""


@pytest.fixture(scope="module")
def interpreted() -> dict:
    return interpreted_errors("tests.plugin.verifier.residual_norm_cases")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rounded", [False, True])
def test_equals_the_two_norms_one_after_another(interpreted, width, dtype, rounded):
    assert interpreted["errors"][f"{width} {dtype} {rounded}"] < ULPS


def test_control_a_forgotten_residual_is_seen(interpreted):
    assert interpreted["control"] > 0.1


def test_refuses_what_is_not_rows():
    with pytest.raises(ValueError, match="not two of rows"):
        norm_add_norm(torch.zeros(4, 6).t(), torch.zeros(6, 4), torch.zeros(4), torch.zeros(4), 1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [*WIDTHS, 2560])
@pytest.mark.parametrize("rounded", [False, True])
def test_gpu_equals_the_two_norms_one_after_another(width, dtype, rounded):
    assert worst_error(width, DTYPES[dtype], "cuda", rounded=rounded) < ULPS
    assert control("cuda") > 0.1
