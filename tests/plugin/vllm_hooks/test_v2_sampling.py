"""Which steps are sampled in two launches: those whose requests are plain greedy, every token with its logits."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.sample.states import NO_LOGPROBS

from plugin.verifier import triton_greedy
from plugin.vllm_hooks import v2_sampling

SLOTS = 4


@pytest.fixture
def step(monkeypatch):
    """`step(change)`: the result of a step of slots 2 and 0 with K = 1 after `change(runner, batch)`; "vLLM's" where
    stock samples."""
    module = ModuleType("vllm.v1.worker.gpu.model_runner")

    class GPUModelRunner:
        def sample(self, hidden_states, input_batch, grammar_output):
            return "vLLM's"

    module.GPUModelRunner = GPUModelRunner
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(triton_greedy, "greedy", lambda *args: (args[0], args[1:], args[2]))
    v2_sampling.greedy_steps()

    def run(change=lambda runner, batch: None, grammar=None, made=None):
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
        runner.sampler, runner.batch_sharder, runner.num_speculative_steps = sampler, None, 1
        runner.model_state = SimpleNamespace(cross_kv_before_decoder=True)
        runner.model = SimpleNamespace(compute_logits=lambda states: states + 1)
        runner.rejection_sampler = SimpleNamespace(synthetic_conditional_rates=None)
        batch = SimpleNamespace(
            num_tokens=4, num_draft_tokens=2, has_prefill=False, logits_indices=torch.arange(4),
            idx_mapping=torch.tensor([2, 0]), idx_mapping_np=np.array([2, 0]), cu_num_logits="bounds",
            input_ids="ids", positions="positions",
        )  # fmt: skip
        change(runner, batch)
        found = GPUModelRunner.sample(runner, torch.zeros(8, 1), batch, grammar)
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


@pytest.mark.parametrize(
    "change",
    [
        _set(batch__has_prefill=True),
        _set(batch__num_tokens=5),
        _set(runner__model_state=SimpleNamespace()),
        _set(runner__sampler=SimpleNamespace()),
        _set(runner__batch_sharder=object()),
        _set(sampler__trace_replay_state=object()),
        _set(sampler__compute_nans=True),
        _set(sampler__return_sampling_mask=True),
        _set(sampler__needs_logits_processing=np.array([False, False, True, False])),
        _set(sampler__sampling_states__num_logprobs=np.array([0, 5, NO_LOGPROBS, 5])),
        _set(sampler__logprob_token_ids_state=SimpleNamespace(max_num_token_ids=lambda slots: 1)),
        _set(batch__idx_mapping_np=np.array([2, 1])),
    ],
)
def test_everything_else_is_vllms(step, change):
    assert step(change) == "vLLM's"
    assert step(grammar=object()) == "vLLM's"


def test_the_verdict_is_kept_for_the_batchs_own_tensor_only(step):
    runner, slots = sys.modules["vllm.v1.worker.gpu.model_runner"].GPUModelRunner(), torch.tensor([2, 0])
    same = _set(batch__idx_mapping=slots)
    assert step(same, made=runner) != "vLLM's"

    def sampled_but_the_same_tensor(runner, batch):
        same(runner, batch)
        batch.idx_mapping_np = np.array([2, 1])

    assert step(sampled_but_the_same_tensor, made=runner) != "vLLM's"
    assert step(_set(batch__idx_mapping_np=np.array([2, 1])), made=runner) == "vLLM's"
