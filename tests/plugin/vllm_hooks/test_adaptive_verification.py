"""What the device verified of each draft, on its way to the counters, with the V2 runner's parts as fakes."""

from types import SimpleNamespace

import numpy as np
import pytest
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.gpu.async_utils import AsyncOutput

import plugin
from plugin.vllm_hooks.adaptive_verification import (
    VERIFIED,
    leave_out_what_was_not_verified,
    verified_drafts_from_the_device,
)
from plugin.vllm_hooks.step_stats import clock_of


@pytest.fixture(autouse=True)
def _installed():
    plugin.register()
    verified_drafts_from_the_device()


def from_device(sampled, rejected):
    """What the scheduler is given of requests a, b, ...: rows of sampled tokens, and the device's rejected drafts."""
    names = [chr(ord("a") + i) for i in range(len(sampled))]
    width = max(len(row) for row in sampled)
    output = object.__new__(AsyncOutput)
    output.copy_event = SimpleNamespace(synchronize=lambda: None)
    output.sampled_token_ids = np.array([row + [-1] * (width - len(row)) for row in sampled])
    output.num_sampled_tokens_np = np.array([len(row) for row in sampled])
    output.model_runner_output = ModelRunnerOutput(names, {name: i for i, name in enumerate(names)})
    output.sampling_mask_tensors = output.num_nans = output.logprobs_tensors = None
    output.prompt_logprobs_dict, output.prompt_token_id_logprobs_dict = {}, {}
    output.pending_aux_output = output._has_fault = None
    if rejected is not None:
        output.num_rejected_np = np.array(rejected)
    return output.get_output()


def scheduled(drafts, invalid=None):
    tokens = {name: [0] * n for name, n in drafts.items()}
    return SimpleNamespace(scheduled_spec_decode_tokens=tokens, num_invalid_spec_tokens=invalid)


def test_the_device_says_how_many_drafts_were_verified():
    """Accepted and rejected ones: a took three of five, b none of two, c had none, d was in the middle of a prompt."""
    output = from_device([[1, 2, 3, 4], [1], [1], []], [2, 2, 0, 0])
    assert getattr(output, VERIFIED) == {"a": 5, "b": 2, "c": 0, "d": 0}
    assert not hasattr(from_device([[1, 2]], None), VERIFIED)


@pytest.mark.parametrize(
    ("verified", "refused", "left_out"),
    [
        (7, 0, 0),
        (5, 0, 2),
        (0, 0, 7),
        (5, 3, 3),  # a grammar had refused more of its end than was left out
        (2, 3, 5),
    ],
)
def test_left_out_and_refused_drafts_lie_at_the_end(verified, refused, left_out):
    step = scheduled({"a": 7}, {"a": refused} if refused else None)
    runner = SimpleNamespace(**{VERIFIED: {"a": verified}})
    leave_out_what_was_not_verified(step, runner)
    assert step.num_invalid_spec_tokens == ({"a": left_out} if left_out else {})


def test_without_adaptive_verification_nothing_is_touched():
    step = scheduled({"a": 7})
    leave_out_what_was_not_verified(step, SimpleNamespace())
    assert step.num_invalid_spec_tokens is None


def test_counters_ledger_and_request_figures_agree():
    """Two drafts of seven, of which three and none were verified."""
    tokens = {"a": [0] * 7, "b": [0] * 7}
    step = SimpleNamespace(
        num_spec_tokens_to_schedule=7,
        num_scheduled_tokens={"a": 8, "b": 8},
        scheduled_spec_decode_tokens=tokens,
        scheduled_new_reqs=[],
        scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set()),
        ec_manager_metadata=None,
        num_invalid_spec_tokens=None,
    )
    made = SimpleNamespace(is_encoder_decoder=True, num_spec_tokens=7, log_stats=True)
    clock = clock_of(made)
    clock.scheduled(step)
    leave_out_what_was_not_verified(step, from_device([[1, 2, 3], [9]], [1, 0]))
    stats = None
    for name, accepted in (("a", 2), ("b", 0)):
        stats = Scheduler.make_spec_decoding_stats(
            made, stats, 7, accepted, step.num_invalid_spec_tokens, name
        )
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (2, 3, 2)
    told = clock.ended(idle=False)
    assert told.drafts == {3: (1, (1, 1, 0)), 0: (1, ())}
    assert told.drafted == {7: (2, (1, 1, 0, 0, 0, 0, 0))}
