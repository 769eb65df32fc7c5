"""A step is executed as vLLM's executor does it, with one future for all that leave their tokens to be sampled."""

from types import SimpleNamespace

import pytest
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.outputs import AsyncModelRunnerOutput

from plugin.vllm_hooks import executor


@pytest.fixture
def make():
    """`make(found)`: an executor whose worker returns or raises that, of an encoder-decoder model or another."""
    executor.steps_without_a_future_of_their_own()

    def made(found, is_encoder_decoder=True):
        def execute_model(scheduler_output):
            if isinstance(found, Exception):
                raise found
            return found

        one = UniProcExecutor.__new__(UniProcExecutor)
        one.vllm_config = SimpleNamespace(model_config=SimpleNamespace(is_encoder_decoder=is_encoder_decoder))
        one.driver_worker = SimpleNamespace(execute_model=execute_model)
        return one

    return made


@pytest.mark.parametrize("is_encoder_decoder", [True, False])
@pytest.mark.parametrize("found", [None, "an output of no tokens"])
def test_what_the_worker_returns_is_in_a_future(make, found, is_encoder_decoder):
    for _ in range(2):
        future = make(found, is_encoder_decoder).execute_model("step", non_block=True)
        assert (future.done(), future.result()) == (True, found)
        assert (future is executor.NOTHING) == (found is None and is_encoder_decoder)
    assert make(found, is_encoder_decoder).execute_model("step") == found


@pytest.mark.parametrize("is_encoder_decoder", [True, False])
def test_what_is_still_being_computed_is_waited_for(make, is_encoder_decoder):
    class Output(AsyncModelRunnerOutput):
        asked = False

        def get_output(self):
            self.asked = True
            return "an output"

    output = Output()
    future = make(output, is_encoder_decoder).execute_model("step", non_block=True)
    assert not output.asked
    assert future.result() == "an output"


@pytest.mark.parametrize("is_encoder_decoder", [True, False])
def test_what_the_worker_raises_is_raised_at_once(make, is_encoder_decoder):
    with pytest.raises(ValueError, match="no room"):
        make(ValueError("no room"), is_encoder_decoder).execute_model("step", non_block=True)
