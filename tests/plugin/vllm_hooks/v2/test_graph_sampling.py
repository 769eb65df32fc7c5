"""What a graph does behind the model, against a request at a time: tokens, and the state of those requests that it may
change."""

import inspect
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.model_states.interface import ModelState

from plugin.verifier.model_state import T5Gemma2ModelState
from plugin.vllm_hooks.v2 import graph_sampling
from tests.plugin.attention.interpreted import interpreted_errors
from tests.plugin.vllm_hooks.v2.graph_steps import (
    GRAPH,
    SLOTS,
    VOCAB,
    K,
    check,
    greedy_by_row,
    made_with,
    state,
    update_by_row,
    walk,
)


@pytest.fixture
def by_row(monkeypatch):
    monkeypatch.setattr(graph_sampling, "greedy", greedy_by_row)
    monkeypatch.setattr(graph_sampling, "post_update", update_by_row)


@pytest.mark.parametrize("rates", [None, [1.0, 0.5, 0.0], [0.0] * K], ids=str)
def test_plain_batches_are_sampled_and_updated_and_nobody_elses_state_is(by_row, rates):
    made, sampling = made_with("cpu", None if rates is None else torch.tensor(rates))
    logits = []
    check(made, sampling, lambda hidden: logits.append((sampling.run(hidden, SLOTS), hidden)))
    assert all(torch.equal(found, 2 * hidden) for found, hidden in logits)


def test_with_our_programs_and_vllms_update_it_is_the_same():
    """Under Triton's interpreter."""
    assert interpreted_errors("tests.plugin.vllm_hooks.v2.graph_steps") == "as it should be"


def test_before_the_first_batch_a_replay_changes_nobodys_state(by_row):
    """So does a capture, whose dummy batch fills the first slots."""
    made, sampling = made_with("cpu")
    before = [each.clone() for each in state(made)]
    made.input_buffers.query_start_loc.copy_(torch.arange(SLOTS + 1))
    sampling.run(torch.ones(GRAPH, VOCAB), SLOTS)
    assert all(torch.equal(one, other) for one, other in zip(state(made), before, strict=True))


def test_replays_that_are_no_step_change_nobodys_state(by_row):
    made, sampling = made_with("cpu")
    made.input_buffers.query_start_loc.copy_(torch.arange(SLOTS + 1))
    made.model_state.batch = SimpleNamespace(idx_mapping=torch.tensor([4, 1]), num_reqs=2, plain=True)
    sampling.stage()
    sampling.stage_nobody()
    before = [each.clone() for each in state(made)]
    sampling.run(torch.ones(GRAPH, VOCAB), SLOTS)
    assert all(torch.equal(one, other) for one, other in zip(state(made), before, strict=True))
    sampling.stage()  # the same batch again
    sampling.run(torch.ones(GRAPH, VOCAB), SLOTS)
    assert not all(torch.equal(one, other) for one, other in zip(state(made), before, strict=True))


def test_a_graph_updates_as_many_requests_as_it_has(by_row):
    made, sampling = made_with("cpu")
    made.input_buffers.query_start_loc[1:] = torch.tensor([1, 2, 2, 2, 2, 2])
    sampling._tokens.num_sampled.fill_(9)
    sampling.run(torch.ones(2, VOCAB), 2)
    assert sampling._tokens.num_sampled[:SLOTS].tolist() == [1, 1, 9, 9, 9, 9]


def test_slots_and_seeds_are_sent_where_the_batch_changes(by_row):
    made, sampling = made_with("cpu", torch.ones(K))
    seeds = made.sampler.sampling_states.seeds
    slots = torch.tensor([3, 1])
    made.model_state.batch = SimpleNamespace(idx_mapping=slots, num_reqs=2, plain=True)
    sampling.stage()
    assert sampling.slots.tolist() == [3, 1, -1, -1, -1, -1]
    assert sampling._seeds.tolist() == list(range(SLOTS))
    seeds.gpu = seeds.gpu + 100  # vLLM's own buffer is another one after every write
    sampling.slots[0] = 77
    sampling.stage()
    assert sampling.slots[0] == 77  # an unchanged batch
    made.model_state.batch.idx_mapping = slots.clone()
    sampling.stage()
    assert sampling.slots.tolist() == [3, 1, -1, -1, -1, -1]
    assert sampling._seeds[0] == 100
    made.model_state.batch.plain = False
    sampling.stage()
    assert sampling.slots.tolist() == [-1] * SLOTS
    sampling.slots[0] = 77
    sampling.stage()
    assert sampling.slots[0] == 77  # and another one whose state is not to be changed


def test_the_memory_of_the_largest_logits_is_what_it_reserves(by_row, monkeypatch):
    _, sampling = made_with("cpu")
    taken = []
    monkeypatch.setattr(torch, "empty", lambda *size, **options: taken.append((size, options["dtype"])))
    sampling.reserve(256)
    assert taken == [((256, VOCAB), torch.float32)]


def test_control_a_batch_that_is_updated_though_it_is_not_plain_would_be_seen(by_row):
    made, sampling = made_with("cpu")
    sampling.is_plain = lambda batch: True
    with pytest.raises(AssertionError):
        check(made, sampling, lambda hidden: sampling.run(hidden, SLOTS))


def test_contract_vllms_runner_has_what_the_graph_reads_and_writes():
    from vllm.v1.worker.gpu.sample.penalties import PenaltiesState
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler
    from vllm.v1.worker.gpu.states import RequestState

    sources = {
        GPUModelRunner.__init__: ("self.input_buffers =", "self.max_num_reqs =", "self.num_speculative_steps ="),
        RequestState.__init__: (
            "self.num_computed_tokens = StagedWriteTensor", "self.last_sampled_tokens = torch.zeros",
            "self.all_token_ids = StagedWriteTensor", "self.total_len = StagedWriteTensor",
        ),
        PenaltiesState.__init__: ("self.output_bin_counts = torch.zeros",),
        RejectionSampler.__init__: ("self.synthetic_conditional_rates", "self.num_speculative_steps"),
    }  # fmt: skip
    for function, lines in sources.items():
        source = inspect.getsource(function)
        assert [line for line in lines if line not in source] == []
    # What the graph has done is all that vLLM does there.
    updating = inspect.getsource(inspect.unwrap(GPUModelRunner.postprocess_sampled))
    assert updating.count("post_update(") == 1
    assert T5Gemma2ModelState.postprocess_state is ModelState.postprocess_state


def test_contract_a_replay_comes_behind_the_model_states_inputs():
    """`model_state.batch` is the batch that a replay is for, a dummy one too."""
    source = inspect.getsource(inspect.unwrap(GPUModelRunner.execute_model))
    assert source.count("self.model_state.prepare_inputs(input_batch") == 1
    assert source.index("self.model_state.prepare_inputs(") < source.index(".run_fullgraph(")
    made = T5Gemma2ModelState.__new__(T5Gemma2ModelState)
    made.encoder_outputs, batch = [], object()
    assert made.prepare_inputs(batch, None) == {"encoder_outputs": []}
    assert made.batch is batch


def test_contract_a_grammar_comes_only_to_a_batch_that_is_said_to_have_one():
    from vllm.v1.core.sched.scheduler import Scheduler

    source = inspect.getsource(Scheduler.get_grammar_bitmask)
    assert "if not scheduler_output.has_structured_output_requests:\n            return None" in source
    prepared = inspect.getsource(inspect.unwrap(GPUModelRunner.prepare_inputs))
    assert "has_structured_output_reqs=scheduler_output.has_structured_output_requests" in prepared


def captured(sampling, hidden):
    """A CUDA graph of what goes on behind the model, which reads `hidden`: call it with what is to stand there."""
    sampling.run(hidden, SLOTS)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sampling.run(hidden, SLOTS)

    def replay(states):
        hidden.copy_(states)
        graph.replay()

    return replay


@pytest.mark.gpu
@pytest.mark.parametrize("rates", [None, [1.0, 1.0, 0.0], [0.0] * K], ids=str)
def test_gpu_a_captured_graph_samples_and_updates(rates, monkeypatch):
    """With our programs and vLLM's own update, captured once and replayed for every batch. Rates are 0 or 1: there the
    seeds say nothing."""
    made, sampling = made_with("cuda", None if rates is None else torch.tensor(rates, device="cuda"))
    check(made, sampling, captured(sampling, torch.zeros(GRAPH, VOCAB, device="cuda")))


@pytest.mark.gpu
def test_gpu_synthetic_acceptance_draws_what_it_draws_without_a_graph():
    """By the slots' seeds, which are copied to a place of their own."""
    from plugin.verifier.triton_greedy import greedy

    rates = torch.tensor([0.8, 0.6, 0.5], device="cuda")
    made, sampling = made_with("cuda", rates)
    made.sampler.sampling_states.seeds.gpu = torch.arange(SLOTS, device="cuda") * 977 - 3
    hidden = torch.zeros(GRAPH, VOCAB, device="cuda")
    replay = captured(sampling, hidden)
    numbers = []
    for batch, plain, *_ in walk(made, sampling, replay, torch.Generator().manual_seed(3)):
        if not plain:
            continue
        buffers, found = made.input_buffers, sampling.output(batch)
        given = rates, buffers.positions, batch.idx_mapping, made.sampler.sampling_states.seeds.gpu
        bounds = buffers.query_start_loc[: batch.num_reqs + 1]
        sampled, num_sampled, num_rejected = greedy(hidden * 2, bounds, buffers.input_ids, 1 + K, given)
        known = torch.arange(1 + K, device="cuda")[None] < num_sampled[:, None]
        assert torch.equal(found.sampled_token_ids[known], sampled[known])
        assert torch.equal(found.num_sampled, num_sampled) and torch.equal(found.num_rejected, num_rejected)
        numbers += num_sampled.tolist()
    assert len(set(numbers)) > 2, np.bincount(numbers)
