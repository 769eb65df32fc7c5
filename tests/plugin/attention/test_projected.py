"""The decoder's and the draft's op on CUDA, from projection to output, under Triton's interpreter."""

import pytest

from tests.plugin.attention.interpreted import interpreted_errors


@pytest.fixture(scope="module")
def errors():
    return interpreted_errors("tests.plugin.attention.projected_cases")


@pytest.mark.parametrize("of", ["decoder", "draft"])
def test_equals_norm_rotation_write_and_attention_one_after_another(errors, of):
    assert errors[of] < 1e-5
