"""Parameters of plain greedy requests are sent only before somebody reads them, and with those of others."""

import inspect
from types import SimpleNamespace

import numpy as np
import pytest
from vllm.v1.worker.gpu import model_runner
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.sample.states import NO_LOGPROBS

from plugin.vllm_hooks.v2 import sampler_parameters
from plugin.vllm_hooks.v2.sampler_parameters import nothing_but_greedy, send_parameters

SLOTS = 4


class Runner:
    """vLLM's `add_requests`, of which the sampler's part is left; each request goes to the slot of its number."""

    def __init__(self, **changes):
        self.model_state = SimpleNamespace(cross_kv_before_decoder=True)
        self.batch_sharder = self.rejection_sampler = self.speculator = None
        self.sampler = made = Sampler.__new__(Sampler)
        made.compute_nans = made.return_sampling_mask = False
        made.trace_replay_state = None
        made.needs_logits_processing = np.zeros(SLOTS, bool)
        logprobs = np.full(SLOTS, NO_LOGPROBS)
        made.sampling_states = SimpleNamespace(
            temperature=SimpleNamespace(np=np.zeros(SLOTS)), num_logprobs=logprobs,
            max_num_logprobs=lambda slots: logprobs[slots].max(),
        )  # fmt: skip
        made.logprob_token_ids_state = SimpleNamespace(max_num_token_ids=lambda slots: 0)
        made.req_states = SimpleNamespace(req_id_to_index={f"r{i}": i for i in range(SLOTS)})
        vars(self).update(changes)

    def add(self, *numbers):
        new = [SimpleNamespace(req_id=f"r{i}") for i in numbers]
        model_runner.GPUModelRunner.add_requests(self, SimpleNamespace(scheduled_new_reqs=new))


@pytest.fixture
def sent(monkeypatch):
    """The samplers whose parameters are sent."""
    found = []

    class GPUModelRunner:
        def add_requests(self, scheduler_output):
            self.sampler.apply_staged_writes()

    monkeypatch.setattr(model_runner, "GPUModelRunner", GPUModelRunner)
    monkeypatch.setattr(Sampler, "apply_staged_writes", lambda self: found.append(self))
    sampler_parameters.parameters_where_they_are_read()
    return found


def test_greedy_requests_are_added_without_and_vllms_sampling_has_them(sent):
    made = Runner()
    made.add(0)
    made.add(1, 2)
    assert sent == []
    send_parameters(made.sampler)
    assert sent == [made.sampler]
    send_parameters(made.sampler)
    assert len(sent) == 1  # they are there
    made.add(3)
    send_parameters(made.sampler)
    assert len(sent) == 2


def test_a_request_of_another_kind_sends_all(sent):
    made = Runner()
    made.sampler.sampling_states.temperature.np[2] = 0.7
    made.add(0)
    assert sent == []
    made.add(1, 2)
    assert len(sent) == 1
    send_parameters(made.sampler)
    assert len(sent) == 1
    made.add(3)  # beside it
    assert len(sent) == 1


def test_a_step_that_adds_nobody_sends_nothing(sent):
    made = Runner()
    made.add()
    send_parameters(made.sampler)
    assert sent == []


@pytest.mark.parametrize(
    "changes",
    [
        {"rejection_sampler": SimpleNamespace(synthetic_conditional_rates=[0.5])},  # draws by the seeds
        {"speculator": SimpleNamespace(in_graph=False)},  # samples its drafts
        {"speculator": SimpleNamespace()},  # another model's
        {"batch_sharder": object()},
        {"model_state": SimpleNamespace()},
    ],
)
def test_where_others_read_them_they_are_sent_at_once(sent, changes):
    made = Runner(**changes)
    made.add(0)
    assert sent == [made.sampler]


def test_a_draft_in_a_graph_and_acceptance_by_the_logits_read_none(sent):
    rejection = SimpleNamespace(synthetic_conditional_rates=None)
    Runner(rejection_sampler=rejection, speculator=SimpleNamespace(in_graph=True)).add(0)
    assert sent == []


def test_another_model_has_them_sent_in_every_step(sent):
    made = Runner(model_state=SimpleNamespace())
    made.add()
    assert len(sent) == 1


def change(path, value):
    def apply(sampler):
        *owners, name = path.split(".")
        owner = sampler
        for each in owners:
            owner = getattr(owner, each)
        setattr(owner, name, value)

    return apply


@pytest.mark.parametrize(
    "changed",
    [
        change("trace_replay_state", object()),
        change("compute_nans", True),
        change("return_sampling_mask", True),
        change("needs_logits_processing", np.array([False, True, False, False])),
        change("logprob_token_ids_state.max_num_token_ids", lambda slots: 1),
        change("sampling_states.max_num_logprobs", lambda slots: 5),
        change("sampling_states.temperature.np", np.array([0.0, 0.5, 0.0, 0.0])),
    ],
)
def test_plain_greedy_is_who_asks_for_nothing_else(changed):
    sampler = Runner().sampler
    assert nothing_but_greedy(sampler, [0, 1])
    changed(sampler)
    assert not nothing_but_greedy(sampler, [0, 1])
    assert not nothing_but_greedy(SimpleNamespace(), [0])


def test_contract_vllm_reads_parameters_where_it_samples_and_hands_two_to_the_draft():
    """Whoever else reads one would find what was sent before."""
    runner = inspect.getsource(model_runner)
    draft = [f"self.sampler.sampling_states.{name},\n" for name in ("temperature.gpu", "seeds.gpu")]
    assert [runner.count(line) for line in draft] == [2, 2]  # a step's and a dummy's
    assert runner.count("self.sampler.sampling_states.") == 4
    assert runner.count("self.sampler(logits, input_batch)") == 1
    assert runner.count("self.rejection_sampler(\n") == 1
