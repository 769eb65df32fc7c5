"""The context's keys and values in one launch: by Triton's interpreter everywhere, on the device with `-m gpu`."""

import pytest
import torch

from plugin.attention.paged_batch import LAYOUTS
from plugin.drafts.kernels.context_pages import addresses, norm_context
from tests.plugin.attention.interpreted import interpreted_errors
from tests.plugin.drafts.context_cases import NORMS, ORDERS, context_error, norm_error


@pytest.fixture(scope="module")
def interpreted():
    return interpreted_errors("tests.plugin.drafts.context_cases")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layer_is_normed_rotated_and_written_by_its_own_weights(interpreted, layout, order):
    assert interpreted[f"{layout} {order}"] < 1e-6


@pytest.mark.parametrize("name", NORMS)
def test_the_context_is_mixed_and_normed(interpreted, name):
    assert interpreted[name] < 1e-6


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 5e-3)])
@pytest.mark.parametrize("name", NORMS)
def test_gpu_the_context_is_mixed_and_normed(name, dtype, bound):
    assert norm_error(name, "cuda", dtype) < bound


def test_a_context_of_another_width_is_refused():
    with pytest.raises(ValueError, match="not 2 x 8 in rows"):
        norm_context(torch.zeros(3, 12), torch.zeros(4, 2), torch.zeros(8), 1e-6)


def test_caches_of_two_kinds_are_refused():
    with pytest.raises(ValueError, match="2 kinds"):
        addresses([torch.zeros(2, 1, 16, 64), torch.zeros(2, 1, 32, 64)])


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 5e-3)])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gpu_every_layer_is_normed_rotated_and_written_by_its_own_weights(layout, order, dtype, bound):
    assert context_error(layout, order, "cuda", dtype) < bound
