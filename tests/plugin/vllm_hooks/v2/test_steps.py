"""A step like the last one leaves the runner as vLLM's whole step does; any other step is vLLM's."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.worker.gpu.input_batch import InputBatch

from plugin.vllm_hooks.v2.steps import LastStep, steps_like_the_last
from tests.plugin.vllm_hooks.v2.fakes import (
    K,
    hooked_decode_batches,
    runner,
    same_buffers,
    same_state,
)
from tests.plugin.vllm_hooks.v2.schedule import Scheduling

STEPS = 150


@pytest.fixture
def repeats(monkeypatch):
    """The hooks, on the CPU, and the steps that were like the last."""
    hooked_decode_batches(monkeypatch)
    steps_like_the_last()
    found = []
    stock = LastStep.again

    def counted(self, made, output):
        found.append(output)
        return stock(self, made, output)

    monkeypatch.setattr(LastStep, "again", counted)
    with torch.inference_mode():  # as vLLM's worker
        yield found


def both_run(steps, seed, padded):
    """A hooked runner and vLLM's through the same steps, equal behind each."""
    hooked, plain = runner(padded=padded), runner(hooked=False, padded=padded)
    scheduling = Scheduling(seed)
    for _ in range(steps):
        output = scheduling.step()
        states = []
        for each in (hooked, plain):
            each.execute_model_state = None
            each.execute_model(output, None)
            states.append(each.execute_model_state)
        same_state(*states)
        if states[0] is not None:
            assert hooked.model_state.batch is states[0].input_batch
        same_buffers(hooked, plain)
        for each in (hooked, plain):  # the draft writes its own slots there
            each.block_tables.slot_mappings[0].fill_(7)
        assert hooked.cudagraph_manager.replayed == plain.cudagraph_manager.replayed
        scheduling.ended(output, [hooked, plain])
    return hooked


@pytest.mark.parametrize("padded", [False, True], ids=["as large as the batch", "padded graphs"])
@pytest.mark.parametrize("seed", range(4))
def test_every_step_leaves_what_vllms_own_leaves(repeats, seed, padded):
    both_run(STEPS, seed, padded)
    assert STEPS / 5 < len(repeats) < STEPS


def without_the_new(last, output):
    new = {each.req_id for each in output.scheduled_new_reqs}
    tokens = {name: n for name, n in output.num_scheduled_tokens.items() if name not in new}
    return replace(output, scheduled_new_reqs=[], num_scheduled_tokens=tokens)


def with_the_lasts_tokens(last, output):
    drafts = {name: [-1] * n for name, n in last.drafts}
    return replace(output, num_scheduled_tokens=dict(last.tokens), scheduled_spec_decode_tokens=drafts)


@pytest.mark.parametrize("seen", [without_the_new, with_the_lasts_tokens])
def test_control_a_step_that_is_taken_for_the_last_one_shows(repeats, monkeypatch, seen):
    stock = LastStep.comes_again
    monkeypatch.setattr(
        LastStep, "comes_again", lambda self, made, output: stock(self, made, seen(self, output))
    )
    with pytest.raises((AssertionError, KeyError)):
        both_run(STEPS, 0, False)


def steady(made, requests=2):
    """A hooked runner behind its second decode step of some requests, and that step's output."""
    scheduling = Scheduling(0)
    scheduling.events = lambda: {"join"} if len(scheduling.running) < requests else set()
    for _ in range(requests + 3):
        output = scheduling.step()
        made.execute_model(output, None)
        scheduling.ended(output, [made])
    return scheduling


CHANGES = {
    "scheduled_new_reqs": [object()],
    "finished_req_ids": {"r9"},
    "preempted_req_ids": {"r9"},
    "scheduled_encoder_inputs": {"r1": [0]},
    "free_encoder_mm_hashes": ["prompt"],
    "ec_manager_metadata": object(),
    "new_block_ids_to_zero": [3],
    "kv_cache_block_copies": [object()],
    "num_scheduled_tokens": {"r1": 1 + K},
    "scheduled_spec_decode_tokens": {"r1": [-1], "r2": [-1] * K},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_step_that_brings_anything_else_does_not_come_again(repeats, name):
    made = runner()
    scheduling = steady(made)
    last, output = made._t5gemma2_last_step, scheduling.step()
    assert last.comes_again(made, output)
    assert not last.comes_again(made, replace(output, **{name: CHANGES[name]}))


@pytest.mark.parametrize(
    ("name", "value"), [("req_ids", ["r2", "r1"]), ("resumed_req_ids", {"r1"})], ids=["req_ids", "resumed"]
)
def test_nor_do_the_same_requests_in_another_order_or_resumed(repeats, name, value):
    made = runner()
    scheduling = steady(made)
    last, output = made._t5gemma2_last_step, scheduling.step()
    assert set(output.scheduled_cached_reqs.req_ids) == {"r1", "r2"}
    cached = replace(output.scheduled_cached_reqs, **{name: value})
    assert not last.comes_again(made, replace(output, scheduled_cached_reqs=cached))


def test_nor_does_a_step_behind_a_dummy_batch(repeats):
    made = runner()
    scheduling = steady(made)
    last, output = made._t5gemma2_last_step, scheduling.step()
    InputBatch.make_dummy(2, 2, made.input_buffers)
    assert not last.comes_again(made, output)


def test_a_step_without_tokens_or_an_error_in_one_is_no_last_step(repeats, monkeypatch):
    made = runner()
    scheduling = steady(made)
    made.execute_model(replace(SchedulerOutput.make_empty(), finished_req_ids={"r1"}), None)
    assert "_t5gemma2_last_step" not in vars(made)
    made = runner()
    scheduling = steady(made)
    monkeypatch.setattr(made.cudagraph_manager, "run_fullgraph", lambda desc: 1 / 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            made.execute_model(scheduling.step(), None)
        assert "_t5gemma2_last_step" not in vars(made)


ELSEWHERE = {
    "aux_output_connector": SimpleNamespace(begin_step=lambda _: None),
    "kv_connector": SimpleNamespace(pre_forward=lambda *_, **__: None, finish_forward=lambda: None),
    "eplb": SimpleNamespace(state=object(), prepare_forward=lambda *_: None),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_an_engine_with_connectors_or_expert_balancing_has_vllms_steps(repeats, name):
    made = runner()
    setattr(made, name, ELSEWHERE[name])
    steady(made)
    assert made._t5gemma2_last_step is None
    assert repeats == []


def test_other_models_have_vllms_steps(repeats):
    made = runner(ours=False)
    made.is_encoder_decoder = False
    steady(made)
    assert repeats == []
