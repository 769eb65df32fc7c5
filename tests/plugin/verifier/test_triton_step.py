"""A decode step's inputs in one launch: what vLLM's four programs write, and what a plain loop writes."""

import pytest

from tests.plugin.attention.interpreted import interpreted_errors
from tests.plugin.verifier.step_cases import CASES, appends, is_right


@pytest.fixture(scope="module")
def interpreted():
    return interpreted_errors("tests.plugin.verifier.step_cases")


@pytest.mark.parametrize("name", CASES)
def test_the_program_writes_what_vllms_four_write(interpreted, name):
    assert interpreted[name]


def test_control_a_token_further_on_is_seen(interpreted):
    assert not interpreted["control"]


def test_new_blocks_go_to_their_places(interpreted):
    assert interpreted["appends"]


@pytest.mark.gpu
def test_gpu_new_blocks_go_to_their_places():
    assert appends("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_gpu_the_program_writes_what_vllms_four_write(name):
    assert is_right(CASES[name], "cuda")
