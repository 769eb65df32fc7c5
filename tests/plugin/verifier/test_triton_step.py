"""A decode step's inputs in one launch: what vLLM's five programs write, and what a plain loop writes."""

import pytest

from tests.plugin.attention.interpreted import interpreted_errors
from tests.plugin.verifier.batch_cases import BATCHES, writes_batch, writes_entries
from tests.plugin.verifier.step_cases import CASES, is_right


@pytest.fixture(scope="module")
def interpreted():
    return interpreted_errors("tests.plugin.verifier.step_cases")


@pytest.mark.parametrize("name", CASES)
def test_the_program_writes_what_vllms_write(interpreted, name):
    assert interpreted[name]


def test_control_a_token_further_on_is_seen(interpreted):
    assert not interpreted["control"]


def test_entries_go_to_their_places(interpreted):
    assert interpreted["entries"]


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_is_written_wherever_it_is_read(interpreted, name, plain):
    assert interpreted[f"{name}, plain {plain}"]


def test_control_another_encoder_length_is_seen(interpreted):
    assert not interpreted["control of batches"]


@pytest.mark.gpu
def test_gpu_entries_go_to_their_places():
    assert writes_entries("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("name", BATCHES)
def test_gpu_a_batch_is_written_wherever_it_is_read(name, plain):
    assert writes_batch(name, "cuda", plain)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_gpu_the_program_writes_what_vllms_write(name):
    assert is_right(CASES[name], "cuda")
