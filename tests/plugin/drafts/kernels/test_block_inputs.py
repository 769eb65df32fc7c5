"""What a block is drafted from: by Triton's interpreter everywhere, on the device with `-m gpu`."""

import pytest

from tests.plugin.attention.interpreted import interpreted_errors
from tests.plugin.drafts.block_inputs_cases import CASES, stores_rightly, unlike_vllms, wrong

WITH_REQUESTS = [name for name, (*_, batch) in CASES.items() if batch]


@pytest.fixture(scope="module")
def interpreted():
    return interpreted_errors("tests.plugin.drafts.block_inputs_cases")


@pytest.mark.parametrize("name", CASES)
def test_every_buffer_is_what_a_plain_loop_writes(interpreted, name):
    assert interpreted["wrong"][name] == []


@pytest.mark.parametrize("name", WITH_REQUESTS)
def test_vllms_program_writes_the_same_from_what_was_rejected(interpreted, name):
    assert interpreted["unlike"][name] == []


def test_drafts_are_stored_by_request(interpreted):
    assert interpreted["stores"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_gpu_every_buffer_is_what_a_plain_loop_writes(name):
    assert wrong(name, "cuda") == []
    assert stores_rightly("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("name", WITH_REQUESTS)
def test_gpu_vllms_program_writes_the_same_from_what_was_rejected(name):
    assert unlike_vllms(name, "cuda") == []
