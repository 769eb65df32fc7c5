"""Norm, rotation and page write in one launch: by Triton's interpreter everywhere, on the device with `-m gpu`."""

import pytest

from plugin.attention.paged_batch import LAYOUTS
from tests.plugin.attention.interpreted import interpreted_errors
from tests.plugin.attention.norm_rope_cases import bfloat16_errors, norm_rope_error


@pytest.fixture(scope="module")
def interpreted():
    return interpreted_errors("tests.plugin.attention.norm_rope_cases")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_norm_rotation_and_write_in_one(interpreted, layout):
    assert interpreted["layouts"][layout] < 1e-6


def test_bfloat16_is_near_a_norm_and_a_rotation_apart(interpreted):
    """The interpreter truncates to bfloat16 where the device rounds: twice the error."""
    fused, apart = interpreted["bfloat16"]
    assert fused < 2.5 * apart


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gpu_norm_rotation_and_write_in_one(layout):
    assert norm_rope_error(layout, "cuda") < 1e-6


@pytest.mark.gpu
def test_gpu_bfloat16_is_closer_to_float64_than_a_norm_and_a_rotation_apart():
    fused, apart = bfloat16_errors("cuda")
    assert fused < apart
