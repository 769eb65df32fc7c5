"""Which steps are sampled by their graph, in two launches, or by vLLM: by plain greedy requests, every token with its
logits, and by what the step's graph has computed."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.sample.states import NO_LOGPROBS

from plugin.verifier import triton_greedy
from plugin.vllm_hooks.v2 import graph_sampling, sampling

SLOTS = 4


@pytest.fixture
def step(monkeypatch):
    """`step(change)`: the result of a step of slots 2 and 0 with K = 1 after `change(runner, batch)`; "vLLM's" where
    stock samples."""
    module = ModuleType("vllm.v1.worker.gpu.model_runner")

    class GPUModelRunner:
        def sample(self, hidden_states, input_batch, grammar_output):
            self.vllms_logits = self.model.compute_logits(hidden_states[input_batch.logits_indices])
            return "vLLM's"

    module.GPUModelRunner = GPUModelRunner
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(triton_greedy, "greedy", lambda *args: (args[0], args[1:], args[2]))
    sampling.greedy_steps()

    def run(change=lambda runner, batch: None, grammar=None, made=None, whole=False):
        runner = made or GPUModelRunner()
        sampler = Sampler.__new__(Sampler)
        sampler.compute_nans = sampler.return_sampling_mask = False
        sampler.trace_replay_state = None
        sampler.needs_logits_processing = np.zeros(SLOTS, bool)
        sampler.sampling_states = SimpleNamespace(
            temperature=SimpleNamespace(np=np.array([0.0, 1.0, 0.0, 0.0])),
            seeds=SimpleNamespace(gpu="seeds"),
            num_logprobs=np.full(SLOTS, NO_LOGPROBS),
            max_num_logprobs=lambda slots: sampler.sampling_states.num_logprobs[slots].max(),
        )
        sampler.logprob_token_ids_state = SimpleNamespace(max_num_token_ids=lambda slots: 0)
        runner.sampler, runner.batch_sharder, runner.cudagraph_manager = sampler, None, None
        runner.model_state = SimpleNamespace(cross_kv_before_decoder=True)
        runner.model = SimpleNamespace(compute_logits=lambda states: states + 1)
        runner.rejection_sampler = SimpleNamespace(synthetic_conditional_rates=None, num_speculative_steps=1)
        runner.prompt_logprobs_worker = SimpleNamespace(
            token_id_scores={}, uses_prompt_logprobs=np.zeros(SLOTS, bool)
        )
        batch = SimpleNamespace(
            num_tokens=4, num_draft_tokens=2, has_prefill=False, logits_indices=torch.arange(4),
            idx_mapping=torch.tensor([2, 0]), idx_mapping_np=np.array([2, 0]), cu_num_logits="bounds",
            input_ids="ids", positions="positions", num_scheduled_tokens=np.array([3, 1]),
            prefill_len_np=np.array([1, 1]), num_computed_prefill_tokens_np=np.array([1, 1]),
        )  # fmt: skip
        states = torch.zeros(8, 1)
        runner.states = states  # as the last replay gave them
        change(runner, batch)
        found = GPUModelRunner.sample(runner, states, batch, grammar)
        if whole:
            return found, runner
        return found if found == "vLLM's" else found[0]

    return run


def test_plain_greedy_steps_are_ours(step):
    found = step()
    assert found.sampled_token_ids.shape == (4, 1)  # the padding has no logits
    assert found.num_sampled == ("bounds", "ids", 2, None)


def test_width_and_synthetic_rates_follow_the_drafts(step):
    def rates(runner, batch):
        runner.rejection_sampler.synthetic_conditional_rates = "rates"

    *_, width, given = step(rates).num_sampled
    assert width == 2
    assert given[:2] == ("rates", "positions")
    assert given[2].tolist() == [2, 0]
    assert given[3] == "seeds"
    assert step(_set(batch__num_draft_tokens=0)).num_sampled == ("bounds", "ids", 1, None)


def _set(**values):
    def change(runner, batch):
        for path, value in values.items():
            *owners, name = path.split("__")
            owner = {"runner": runner, "batch": batch, "sampler": runner.sampler}[owners[0]]
            for part in owners[1:]:
                owner = getattr(owner, part)
            setattr(owner, name, value)

    return change


def _admits(computed=0, prefill=1, **more):
    """The second request is admitted with this step, and begins or goes on with its decoder's prompt."""
    return _set(
        batch__has_prefill=True,
        batch__prefill_len_np=np.array([1, prefill]),
        batch__num_computed_prefill_tokens_np=np.array([1, computed]),
        **more,
    )


def test_a_step_that_admits_requests_is_ours_where_each_gets_its_first_token(step):
    """From one token of a prompt, or the last one of a longer prompt or of a resumed request."""
    assert step(_admits()) != "vLLM's"
    assert step(_admits(computed=6, prefill=7)) != "vLLM's"


@pytest.mark.parametrize(
    "change",
    [
        _admits(computed=0, prefill=7),  # one token of seven: nothing is to be sampled
        _admits(computed=5, prefill=7),
        _admits(runner__prompt_logprobs_worker__uses_prompt_logprobs=np.array([True, False, False, False])),
        _admits(runner__prompt_logprobs_worker__token_id_scores={"another": object()}),
    ],
)
def test_an_admitting_step_of_which_more_is_asked_is_vllms(step, change):
    assert step(change) == "vLLM's"


@pytest.mark.parametrize(
    "change",
    [
        _set(batch__num_tokens=5),
        _set(runner__model_state=SimpleNamespace()),
        _set(runner__sampler=SimpleNamespace()),
        _set(runner__batch_sharder=object()),
        _set(sampler__needs_logits_processing=np.array([False, False, True, False])),
        _set(batch__idx_mapping_np=np.array([2, 1])),
    ],
)
def test_everything_else_is_vllms(step, change):
    assert step(change) == "vLLM's"
    assert step(grammar=object()) == "vLLM's"


def _replayed(output=None, logits=None, states=None):
    """The step's graph has computed logits, and `output` if its batch was staged."""

    def change(runner, batch):
        runner.cudagraph_manager = SimpleNamespace(
            replayed=SimpleNamespace(
                hidden_states=runner.states if states is None else states,
                logits=torch.full((8, 3), 7.0) if logits is None else logits,
            ),
            sampling=SimpleNamespace(output=lambda of: output if of is batch else None),
        )

    return change


def _both(*changes):
    def change(runner, batch):
        for each in changes:
            each(runner, batch)

    return change


def test_a_step_that_its_graph_has_sampled_is_given_what_that_chose(step):
    chosen = SimpleNamespace(num_sampled="counts", num_rejected="rejected")
    found, runner = step(_replayed(chosen), whole=True)
    assert found == (chosen, "counts", "rejected")
    assert not hasattr(runner, "vllms_logits")
    with pytest.raises(RuntimeError, match="it is sampled already"):
        step(_replayed(chosen), grammar=object())


def test_a_graphs_logits_are_not_computed_again(step):
    """vLLM samples, from the rows that it picks of them."""
    logits = torch.arange(24.0).view(8, 3)

    def two_rows(runner, batch):
        batch.logits_indices = torch.tensor([1, 3])

    for change, grammar in ((two_rows, None), (_admits(prefill=7), None), (two_rows, object())):
        found, runner = step(_both(_replayed(logits=logits), change), grammar, whole=True)
        assert found == "vLLM's"
        rows = [1, 3] if change is two_rows else [0, 1, 2, 3]
        assert torch.equal(runner.vllms_logits, logits[rows])
        assert runner.vllms_logits.data_ptr() != logits.data_ptr()  # a grammar writes into them
        assert runner.model is not sampling._RowsOfLogits


def test_the_logits_of_another_replay_are_not_taken(step):
    """A dummy batch's replay before a step without a graph; a graph too large for logits."""
    chosen = SimpleNamespace(num_sampled="another's", num_rejected="another's")
    found = step(_replayed(chosen, states=torch.zeros(8, 1)))
    assert torch.equal(found.sampled_token_ids, torch.ones(4, 1))

    def without(runner, batch):
        _replayed(chosen)(runner, batch)
        runner.cudagraph_manager.replayed.logits = None

    assert torch.equal(step(without).sampled_token_ids, torch.ones(4, 1))
    found, runner = step(_both(without, _admits(prefill=7)), whole=True)
    assert found == "vLLM's"
    assert torch.equal(runner.vllms_logits, torch.ones(4, 1))


@pytest.mark.parametrize(
    ("change", "plain"),
    [
        (lambda runner, batch: None, True),
        (_set(batch__req_ids=["req_0_dummy"]), False),
        (_set(batch__has_structured_output_reqs=True), False),
        (_admits(), True),
        (_admits(prefill=7), False),
    ],
)
def test_a_batch_is_plain_before_it_runs_if_it_is_real_and_without_a_grammar(step, change, plain):
    """A dummy batch's slots are those of real requests."""

    def about_to_run(runner, batch):
        batch.req_ids, batch.has_structured_output_reqs = ["a", "b"], False
        runner.req_states = SimpleNamespace(req_id_to_index={"a": 2, "b": 0})
        change(runner, batch)
        assert sampling._will_be_plain(runner, batch) is plain

    step(about_to_run)


@pytest.fixture
def capturing(monkeypatch):
    """`capturing(**attributes)`: a hooked runner after its capture."""
    module = ModuleType("vllm.v1.worker.gpu.model_runner")

    class GPUModelRunner:
        def capture_model(self, *, profile_only=False):
            self.captured = profile_only
            return 7

        def postprocess_sampled(
            self, idx_mapping, sampled_tokens, num_sampled, num_rejected, query_start_loc=None
        ):
            self.updated = (idx_mapping, sampled_tokens, num_sampled, num_rejected, query_start_loc)

    module.GPUModelRunner = GPUModelRunner
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(graph_sampling, "GraphSampling", lambda runner, is_plain: ("sampling of", runner))
    sampling.graphs_that_sample()

    def run(**attributes):
        made = GPUModelRunner()
        made.model_state = SimpleNamespace(cross_kv_before_decoder=True)
        made.adaptive_verification = made.aux_output_connector = None
        made.cudagraph_manager = SimpleNamespace(sampling=None)
        vars(made).update(attributes)
        assert made.capture_model(profile_only=True) == 7
        assert made.captured is True
        return made

    return run


def test_graphs_sample_for_t5gemma_2_without_adaptive_verification_or_other_outputs(capturing):
    made = capturing()
    assert made.cudagraph_manager.sampling == ("sampling of", made)
    for other in (
        {"model_state": SimpleNamespace()},
        {"adaptive_verification": object()},
        {"aux_output_connector": object()},
    ):
        assert capturing(**other).cudagraph_manager.sampling is None


def test_requests_that_the_graph_has_updated_are_not_updated_again(capturing):
    made = capturing()
    made.cudagraph_manager.sampling = SimpleNamespace(has_updated=lambda tokens: tokens == "the graph's")
    made.postprocess_sampled("slots", "the graph's", 1, 2, "bounds")
    assert not hasattr(made, "updated")
    made.postprocess_sampled("slots", "another's", 1, num_rejected=2, query_start_loc="bounds")
    assert made.updated == ("slots", "another's", 1, 2, "bounds")
    for manager in (None, SimpleNamespace(sampling=None)):
        made.cudagraph_manager, made.updated = manager, None
        made.postprocess_sampled("slots", "the graph's", 1, 2)
        assert made.updated == ("slots", "the graph's", 1, 2, None)


def test_the_verdict_is_kept_for_the_batchs_own_tensor_only(step):
    runner, slots = sys.modules["vllm.v1.worker.gpu.model_runner"].GPUModelRunner(), torch.tensor([2, 0])
    same = _set(batch__idx_mapping=slots)
    assert step(same, made=runner) != "vLLM's"

    def sampled_but_the_same_tensor(runner, batch):
        same(runner, batch)
        batch.idx_mapping_np = np.array([2, 1])

    assert step(sampled_but_the_same_tensor, made=runner) != "vLLM's"
    assert step(_set(batch__idx_mapping_np=np.array([2, 1])), made=runner) == "vLLM's"
