"""What is copied behind a step: a graph's tokens at once, drafts only where a grammar reads them."""

import inspect
import sys
from collections import deque
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.gpu import async_utils, model_runner
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.spec_decode.utils import DraftTokensHandler

from plugin.vllm_hooks.v2.graph_sampling import GraphSampled, GraphSampling
from plugin.vllm_hooks.v2.outputs import drafts_that_stay_on_the_device, tokens_in_one_copy
from plugin.vllm_hooks.v2.step_tokens import StepTokens

BLOCK = 3


@pytest.fixture
def asynchronous(monkeypatch):
    """vLLM's `AsyncOutput`, hooked, where what it does of its own is told only."""
    told = []
    monkeypatch.setattr(
        torch.cuda,
        "Event",
        lambda blocking: SimpleNamespace(record=lambda stream: None, synchronize=lambda: None),
    )

    class AsyncOutput:
        def __init__(
            self, model_runner_output, sampler_output, num_sampled_tokens, main_stream, copy_stream,
            check_ep_fault, pending_aux_output,
        ):  # fmt: skip
            told.append("copied one by one")

        def get_output(self):
            return "vLLM's"

    monkeypatch.setattr(async_utils, "AsyncOutput", AsyncOutput)
    tokens_in_one_copy()
    return AsyncOutput, told


def outputs(made, sampled, names=("a", "b")):
    return made(
        model_runner_output=ModelRunnerOutput(list(names), {name: i for i, name in enumerate(names)}),
        sampler_output=sampled, num_sampled_tokens=sampled.num_sampled, main_stream="main", copy_stream="copy",
        check_ep_fault=False, pending_aux_output=None,
    )  # fmt: skip


@pytest.fixture
def sampling():
    made = GraphSampling.__new__(GraphSampling)
    made._sizes, made._copies = (4, 1 + BLOCK), deque()
    made._tokens = StepTokens.allocate(*made._sizes)
    return made


def chosen(sampling, rows):
    """What a replay leaves behind, as its step's `sample` returns it."""
    for i, row in enumerate(rows):
        sampling._tokens.sampled[i, : len(row)] = torch.tensor(row)
        sampling._tokens.num_sampled[i] = len(row)
    sampled, num_sampled, num_rejected = sampling._tokens.of(len(rows))
    made = GraphSampled(sampled, None, None, num_sampled, num_rejected)
    made.sampling = sampling
    return made


def test_two_steps_in_flight_are_read_in_turn_and_their_memory_is_used_again(asynchronous, sampling):
    made, told = asynchronous
    first = outputs(made, chosen(sampling, [[1, 2, 3, 4], [5]]))
    second = outputs(made, chosen(sampling, [[6], [7, 8]]))
    assert first.get_output().sampled_token_ids == [[1, 2, 3, 4], [5]]
    third = outputs(made, chosen(sampling, [[9, 9], [9]]))
    assert second.get_output().sampled_token_ids == [[6], [7, 8]]
    found = third.get_output()
    assert found.sampled_token_ids == [[9, 9], [9]]
    assert found.req_ids == ["a", "b"]
    assert (found.logprobs, found.prompt_logprobs_dict) == (None, {})
    assert len(sampling._copies) == 2
    assert told == []


def test_tokens_that_no_graph_chose_are_copied_as_vllm_copies_them(asynchronous):
    made, told = asynchronous
    sampled = SamplerOutput(torch.zeros(2, 1), None, None, torch.ones(2), torch.zeros(2))
    assert outputs(made, sampled).get_output() == "vLLM's"
    assert told == ["copied one by one"]


@pytest.fixture
def runner(monkeypatch):
    """A runner whose `sample_tokens` reads what vLLM's reads, and tells it."""
    module = ModuleType("vllm.v1.worker.gpu.model_runner")

    class GPUModelRunner:
        def sample_tokens(self, grammar_output):
            self.told = self.num_speculative_steps
            if grammar_output == "fails":
                raise ValueError("no")
            return "output"

    module.GPUModelRunner = GPUModelRunner
    monkeypatch.setitem(sys.modules, module.__name__, module)
    drafts_that_stay_on_the_device()
    made = GPUModelRunner()
    made.num_speculative_steps, made.model_state = BLOCK, SimpleNamespace(cross_kv_before_decoder=True)
    handler = DraftTokensHandler.__new__(DraftTokensHandler)
    handler.req_ids, handler.draft_tokens_np, handler.num_draft_tokens = [], "the step's before", 0
    made.draft_tokens_handler = handler
    batch = SimpleNamespace(req_ids=["a", "b"], has_structured_output_reqs=False)
    made.execute_model_state = SimpleNamespace(input_batch=batch, num_spec_tokens_to_schedule=2)
    return made


def test_drafts_without_a_grammar_are_not_gathered_but_counted(runner):
    assert runner.sample_tokens(None) == "output"
    assert (runner.told, runner.num_speculative_steps) == (0, BLOCK)
    drafts = runner.draft_tokens_handler.get_draft_tokens()
    assert (drafts.req_ids, drafts.draft_token_ids) == (["a", "b"], [[-1, -1]] * 2)


def test_a_step_that_fails_leaves_the_block_as_it_was(runner):
    with pytest.raises(ValueError, match="no"):
        runner.sample_tokens("fails")
    assert runner.num_speculative_steps == BLOCK


@pytest.mark.parametrize("case", ["grammar", "another model", "no step", "no draft"])
def test_where_drafts_are_read_or_there_are_none_vllm_does_what_it_does(runner, case):
    if case == "grammar":
        runner.execute_model_state.input_batch.has_structured_output_reqs = True
    if case == "another model":
        runner.model_state = SimpleNamespace()
    if case == "no step":
        runner.execute_model_state = None
    if case == "no draft":
        runner.num_speculative_steps = 0
    block = runner.num_speculative_steps
    assert runner.sample_tokens(None) == "output"
    assert (runner.told, runner.num_speculative_steps) == (block, block)
    assert runner.draft_tokens_handler.req_ids == []


def test_contract_vllms_sample_tokens_asks_for_the_block_only_to_fill_and_to_gather():
    """Where it asks for more, a block of 0 would no longer leave out just that."""
    source = inspect.getsource(inspect.unwrap(model_runner.GPUModelRunner.sample_tokens))
    asks = [line.strip() for line in source.splitlines() if "self.num_speculative_steps" in line]
    assert asks == [
        "if num_spec_tokens < self.num_speculative_steps:",
        "if self.num_speculative_steps > 0:",
    ]
    assert "draft_tokens[:, num_spec_tokens:] = -1" in source
    for called in ("sample", "postprocess_sampled"):
        other = inspect.getsource(inspect.unwrap(getattr(model_runner.GPUModelRunner, called)))
        assert "num_speculative_steps" not in other


def test_contract_vllm_hands_on_no_more_of_unread_drafts_than_their_number():
    handler = DraftTokensHandler.__new__(DraftTokensHandler)
    batch = SimpleNamespace(req_ids=["a"], has_structured_output_reqs=False)
    handler.set_draft_tokens(batch, np.empty((0, 5)))
    assert (handler.num_draft_tokens, handler.draft_tokens_np) == (5, None)


def test_contract_vllm_begins_a_steps_copy_by_name():
    source = inspect.getsource(inspect.unwrap(model_runner.GPUModelRunner.sample_tokens))
    begun = source[source.index("AsyncOutput(") :]
    for name in ("model_runner_output=", "sampler_output=", "main_stream="):
        assert name in begun[: begun.index(")\n")]
