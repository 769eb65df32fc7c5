"""Norm, addition and norm in one launch: by Triton's interpreter everywhere, on the device with `-m gpu`."""

import pytest

from tests.plugin.attention.interpreted import interpreted_errors
from tests.plugin.verifier.residual_norm_cases import DTYPES, WIDTHS, control, worst_error

ULPS = 4
"""Of the largest value: a sum in another order, and one rounding more or less of the norm's factor."""


@pytest.fixture(scope="module")
def interpreted() -> dict:
    return interpreted_errors("tests.plugin.verifier.residual_norm_cases")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_equals_the_two_norms_one_after_another(interpreted, width, dtype):
    assert interpreted["errors"][f"{width} {dtype}"] < ULPS


def test_control_a_forgotten_residual_is_seen(interpreted):
    assert interpreted["control"] > 0.1


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_gpu_equals_the_two_norms_one_after_another(width, dtype):
    assert worst_error(width, DTYPES[dtype], "cuda") < ULPS
    assert control("cuda") > 0.1
