"""vLLM's own `sample_tokens`, from a graph's replay to the answer: nothing is launched that the graph has done, and
what the runner, the scheduler and the draft are told is right."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vllm.v1.worker.gpu import model_runner
from vllm.v1.worker.gpu.model_runner import ExecuteModelState, GPUModelRunner
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.sample.states import NO_LOGPROBS
from vllm.v1.worker.gpu.spec_decode.utils import DraftTokensHandler

from plugin.vllm_hooks.v2 import graph_sampling, outputs
from plugin.vllm_hooks.v2 import sampling as v2_sampling
from plugin.vllm_hooks.v2.graph_sampling import GraphSampling
from tests.plugin.vllm_hooks.v2.graph_steps import GRAPH, SLOTS, VOCAB, K, greedy_by_row, update_by_row
from tests.plugin.vllm_hooks.v2.graph_steps import runner as graph_runner


class Runner:
    """What `sample_tokens` reads of a runner with a draft, and the three methods that it calls."""

    is_last_pp_rank, check_ep_fault, use_pp, main_stream, output_copy_stream = (
        True,
        False,
        False,
        "main",
        "copy",
    )
    pcp_manager = pp_handler = aux_output_connector = adaptive_verification = batch_sharder = None

    def sample_tokens(self, grammar_output):
        return GPUModelRunner.sample_tokens(self, grammar_output)

    def sample(self, *args):
        return GPUModelRunner.sample(self, *args)

    def postprocess_sampled(self, *args):
        return GPUModelRunner.postprocess_sampled(self, *args)


@pytest.fixture
def runner(monkeypatch):
    """A runner whose last replay was of slots 4 and 1 with K drafts each, and what it has launched and proposed."""
    monkeypatch.setattr(
        torch.cuda,
        "Event",
        lambda blocking: SimpleNamespace(record=lambda stream: None, synchronize=lambda: None),
    )
    monkeypatch.setattr(graph_sampling, "greedy", greedy_by_row)
    monkeypatch.setattr(graph_sampling, "post_update", update_by_row)
    v2_sampling.graphs_that_sample()
    v2_sampling.greedy_steps()
    outputs.tokens_in_one_copy()
    outputs.drafts_that_stay_on_the_device()
    made, parts = Runner(), graph_runner("cpu")
    vars(made).update(vars(parts))
    made.updates, made.proposed = [], []

    def updating(idx_mapping, *_):
        made.updates.append(idx_mapping.tolist())

    monkeypatch.setattr(model_runner, "post_update", updating)
    sampler = Sampler.__new__(Sampler)
    vars(sampler).update(vars(parts.sampler))
    sampler.compute_nans = sampler.return_sampling_mask = False
    sampler.trace_replay_state, sampler.needs_logits_processing = None, np.zeros(SLOTS, bool)
    sampler.sampling_states.temperature = SimpleNamespace(np=np.zeros(SLOTS), gpu=torch.zeros(SLOTS))
    sampler.sampling_states.max_num_logprobs = lambda slots: NO_LOGPROBS
    sampler.logprob_token_ids_state = SimpleNamespace(max_num_token_ids=lambda slots: 0)
    made.sampler = sampler
    made.model_state = SimpleNamespace(cross_kv_before_decoder=True, postprocess_state=lambda *_: None)
    made.prompt_logprobs_worker = SimpleNamespace(
        compute_prompt_logprobs=lambda *_: {}, compute_prompt_token_id_logprobs=lambda *_: {},
        token_id_scores={}, uses_prompt_logprobs=np.zeros(SLOTS, bool),
    )  # fmt: skip
    states = made.req_states
    states.req_id_to_index = {"a": 4, "b": 1}
    states.draft_tokens = torch.full((SLOTS, K), -7)
    states.next_prefill_tokens, states.prompt_len = None, SimpleNamespace(np=None)
    handler = DraftTokensHandler.__new__(DraftTokensHandler)
    handler.req_ids, handler.draft_tokens_np, handler.num_draft_tokens = [], None, 0
    made.draft_tokens_handler = handler
    made.eplb = SimpleNamespace(step=lambda **_: None)
    made.kv_connector = SimpleNamespace(post_forward=lambda finished: None)
    made._draft_workspace_lane = 0
    drafted = torch.arange(2 * K).view(2, K) + 50

    def propose(batch, attn, slots, hidden, taps, num_sampled, num_rejected, last, *_, **more):
        made.proposed.append((num_sampled.tolist(), num_rejected.tolist(), last.flatten().tolist()))
        return drafted

    made.speculator = SimpleNamespace(supports_mm_inputs=False, propose=propose, draft_logits=None)
    sampling = GraphSampling(made, lambda batch: v2_sampling._will_be_plain(made, batch))
    made.cudagraph_manager = SimpleNamespace(sampling=sampling, replayed=None)
    return made


def replayed(runner, *, num_drafts=K, structured=False, k=K, admits=False):
    """A replay of a graph of GRAPH tokens: the first request's drafts are right, the other's second one is not."""
    rows = 2 * (1 + num_drafts)
    hidden = torch.rand(GRAPH, VOCAB, generator=torch.Generator().manual_seed(1))
    best = hidden.argmax(1)
    buffers = runner.input_buffers
    buffers.query_start_loc[:] = rows
    buffers.query_start_loc[:2] = torch.tensor([0, 1 + num_drafts])
    buffers.input_ids[1:] = best[:-1]
    if num_drafts > 1:
        buffers.input_ids[1 + num_drafts + 2] = (best[1 + num_drafts + 1] + 1) % VOCAB
    slots = torch.tensor([4, 1])
    batch = SimpleNamespace(
        req_ids=["a", "b"], num_reqs=2, num_tokens=rows, idx_mapping=slots, idx_mapping_np=slots.numpy(),
        logits_indices=torch.arange(rows), has_prefill=admits, has_structured_output_reqs=structured,
        num_draft_tokens=2 * num_drafts, query_start_loc=buffers.query_start_loc[:3],
        num_scheduled_tokens=np.full(2, 1 + num_drafts), prefill_len_np=np.ones(2),
        num_computed_prefill_tokens_np=np.array([1 - admits, 1]),
    )  # fmt: skip
    runner.model_state.batch = batch
    runner.cudagraph_manager.sampling.stage()
    logits = runner.cudagraph_manager.sampling.run(hidden, runner.max_num_reqs)
    runner.cudagraph_manager.replayed = SimpleNamespace(hidden_states=hidden, logits=logits)
    runner.execute_model_state = ExecuteModelState(
        batch, {}, {}, hidden, [], None, set(), None, None, num_spec_tokens_to_schedule=k
    )
    return best.tolist()


def test_a_plain_step_is_answered_without_a_launch_of_its_own(runner):
    best = replayed(runner)
    output = runner.sample_tokens(None).get_output()
    first, second = best[: 1 + K], best[1 + K : 3 + K]
    assert output.sampled_token_ids == [first, second]
    assert (output.req_ids, output.req_id_to_index) == (["a", "b"], {"a": 0, "b": 1})
    assert runner.updates == []
    [(num_sampled, num_rejected, last)] = runner.proposed
    assert (num_sampled, num_rejected) == ([1 + K, 2], [0, K - 1])
    assert (last[4], last[1]) == (first[-1], second[-1])
    assert runner.req_states.draft_tokens[[4, 1]].tolist() == [[50, 51, 52], [53, 54, 55]]
    assert runner.draft_tokens_handler.get_draft_tokens().draft_token_ids == [[-1] * K] * 2
    assert runner.num_speculative_steps == K


def test_a_step_that_admits_a_request_is_answered_no_less(runner):
    """One token of each: the first of the new one."""
    best = replayed(runner, num_drafts=0, admits=True)
    assert runner.sample_tokens(None).get_output().sampled_token_ids == [best[:1], best[1:2]]
    assert runner.updates == []
    assert runner.req_states.total_len.gpu[[4, 1]].tolist() == [2, 2]


@pytest.mark.parametrize("k", [0, 1])
def test_with_another_k_the_block_is_stored_as_it_is_and_k_of_it_told(runner, k):
    replayed(runner, num_drafts=k, k=k)
    output = runner.sample_tokens(None).get_output()
    assert [len(tokens) for tokens in output.sampled_token_ids] == [1 + k] * 2
    assert runner.req_states.draft_tokens[4].tolist() == [50, 51, 52]
    assert runner.draft_tokens_handler.get_draft_tokens().draft_token_ids == [[-1] * k] * 2


def test_steps_in_flight_keep_their_own_tokens(runner):
    first = replayed(runner)
    earlier = runner.sample_tokens(None)
    later = replayed(runner, num_drafts=0)
    assert first == later  # the same model; fewer tokens are asked for
    another = runner.sample_tokens(None)
    assert earlier.get_output().sampled_token_ids == [first[: 1 + K], first[1 + K : 3 + K]]
    assert another.get_output().sampled_token_ids == [[first[0]], [first[1]]]


def test_a_step_with_a_grammar_is_vllms_from_the_graphs_logits(runner, monkeypatch):
    """Its requests are updated behind the sampling, its drafts gathered for the scheduler."""
    gathered, computed = [], []
    runner.structured_outputs_worker = SimpleNamespace(
        apply_grammar_bitmask=lambda logits, *_: computed.append(logits.clone())
    )
    monkeypatch.setattr(model_runner, "grammar_invalid_drafts", lambda *_: None)
    told = SamplerOutput(
        torch.zeros(2, 1 + K, dtype=torch.int64), None, None, torch.ones(2, dtype=torch.int32), torch.zeros(2)
    )
    runner.rejection_sampler = lambda logits, *_: told
    runner.draft_tokens_handler.set_draft_tokens = lambda batch, drafts: gathered.append(drafts.tolist())
    monkeypatch.setattr(model_runner, "AsyncOutput", lambda **given: given["sampler_output"])
    before = runner.req_states.total_len.gpu.clone()
    replayed(runner, structured=True, k=2)
    grammar = SimpleNamespace(
        structured_output_request_ids=["a"], grammar_bitmask=None, num_acceptable_drafts=None
    )
    assert runner.sample_tokens(grammar) is told
    assert torch.equal(computed[0], runner.cudagraph_manager.replayed.logits[: 2 * (1 + K)])
    assert torch.equal(runner.req_states.total_len.gpu, before)
    assert runner.updates == [[4, 1]]
    assert gathered == [[[50, 51], [53, 54]]]
    assert runner.req_states.draft_tokens[4].tolist() == [50, 51, -1]
