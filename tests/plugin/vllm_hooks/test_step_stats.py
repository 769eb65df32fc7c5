"""What a step says about drafting: which durations are K's alone, and the way to the front end."""

import dataclasses
from types import SimpleNamespace

import msgspec
import pytest
from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.outputs import DraftTokenIds

import plugin
from plugin.drafts.steps import STEP_FIELD, StepStats, step_stats
from plugin.verifier.encoder.work import EncoderWork
from plugin.vllm_hooks.step_stats import Scheduled, StepClock, clock_of, note_cut_drafts


def output(k, drafts, new=(), resumed=(), work=None):
    """As vLLM schedules it: `drafts` by request."""
    return SimpleNamespace(
        num_spec_tokens_to_schedule=k,
        num_scheduled_tokens={name: 1 + n for name, n in drafts.items()},
        scheduled_spec_decode_tokens={name: [-1] * n for name, n in drafts.items() if n},
        scheduled_new_reqs=[*new],
        scheduled_cached_reqs=SimpleNamespace(resumed_req_ids={*resumed}),
        ec_manager_metadata=work,
    )


@pytest.mark.parametrize(
    ("step", "steady"),
    [
        (output(3, {"a": 3, "b": 3}), True),
        (output(0, {"a": 0, "b": 0}), True),
        (output(0, {"a": 0, "b": 0}, new=["b"]), False),
        (output(0, {"a": 0, "b": 0}, resumed=["b"]), False),
        (output(3, {"a": 3, "b": 0}), False),
        (output(0, {"a": 3, "b": 3}), False),
        (output(3, {}), False),
        (output(3, {"a": 3}, work=EncoderWork("a prompt")), False),
    ],
)
def test_a_steady_step_verifies_k_tokens_of_every_request(step, steady):
    assert Scheduled.of(step).steady is steady


def told(*steps, in_flight=1, idle=(), paused=0.0):
    """`steps`, of which step i ends at i * i, with so many scheduled before the first one ends, each `paused` seconds
    after the end of the one before.
    """
    now, waiting, found = [0.0], list(steps), []
    clock = StepClock(lambda: now[0])
    for i in range(len(steps)):
        now[0] += paused
        while waiting and len(clock.in_flight) < in_flight:
            clock.scheduled(waiting.pop(0))
        now[0] = i * i
        found.append(clock.ended(idle=i in idle))
    return found


def durations(*steps, **given):
    return [step and step.seconds for step in told(*steps, **given)]


A, B, ZERO = output(3, {"a": 3}), output(3, {"a": 3, "b": 3}), output(0, {"a": 0})
JOIN, SWITCH = output(3, {"a": 3, "b": 0}, new=["b"]), output(0, {"a": 3})


def test_a_duration_is_from_end_to_end_between_steps_alike():
    assert durations(A, A, B, B) == [None, 1, 3, 5]


def test_admissions_switches_and_pauses_have_none_and_neither_has_the_step_behind_them():
    assert durations(A, A, JOIN, B, B) == [None, 1, None, None, 7]
    assert durations(A, A, SWITCH, ZERO, ZERO) == [None, 1, None, None, 7]
    assert durations(A, A, A, A, idle={1}) == [None, 1, None, 5]


def test_an_admission_in_flight_behind_a_step_takes_its_duration():
    assert durations(A, A, A, JOIN, B, B, in_flight=2) == [None, 1, None, None, None, 9]


def test_all_time_is_some_steps_and_pauses_are_told_apart():
    """An admission's time has no duration of K, but somebody waited for it; so for a prompt that is encoded alone."""
    steps = told(A, JOIN, output(3, {}), B, B, paused=0.5, idle={0})
    assert [step and (step.wall, step.idle) for step in steps[1:]] == [(1, 0.5), None, (8, 1.0), (7, 0.5)]
    ahead = told(A, A, A, in_flight=2, paused=0.5)
    assert [(step.wall, step.idle) for step in ahead[2:]] == [(3, 0.0)]


def test_a_step_without_requests_says_nothing():
    clock = StepClock()
    assert clock.ended(idle=False) is None  # statistics outside of a step
    clock.scheduled(output(3, {}))
    assert clock.ended(idle=True) is None


def test_drafts_are_counted_by_their_length_and_accepted_by_position():
    clock = StepClock()
    clock.scheduled(output(3, {"a": 3, "b": 3, "c": 1}))
    for drafted, accepted in ((3, 2), (3, 0), (1, 1), (0, 0)):
        clock.verified(drafted, accepted, drafted)
    step = clock.ended(idle=False)
    assert (step.k, step.num_requests) == (3, 3)
    assert step.drafts == {3: (2, (1, 1, 0)), 1: (1, (1,)), 0: (1, ())}
    clock.scheduled(A)
    assert clock.ended(idle=False).drafts == {}


def test_what_adaptive_verification_or_a_grammar_left_out_is_no_draft_and_stays_with_the_step():
    clock = StepClock()
    clock.scheduled(output(7, {"a": 7, "b": 7, "c": 7}))
    clock.verified(3, 3, 7, "a")
    clock.verified(0, 0, 7, "b")
    clock.verified(7, 2, 7, "c")
    step = clock.ended(idle=False)
    assert step.drafts == {3: (1, (1, 1, 1)), 0: (1, ()), 7: (1, (1, 1, 0, 0, 0, 0, 0))}
    assert step.drafted == {7: (3, (2, 2, 1, 0, 0, 0, 0))}
    clock.scheduled(output(7, {"a": 7}))
    clock.verified(7, 0, 7, "a")
    step = clock.ended(idle=False)
    assert step.before_trimming == {} and step.drafted == step.drafts


def request(left, finished=False, prefill=False):
    return SimpleNamespace(is_finished=lambda: finished, is_prefill_chunk=prefill, spec_token_ids=[5] * left)


def test_what_a_grammar_cuts_before_the_step_is_scheduled_stays_with_the_step():
    """Of seven drafts each: two left, none left, all left; one whose request is not in the step after all."""
    requests = {"a": request(2), "b": request(0), "c": request(7), "d": request(1)}
    requests |= {"e": request(0, finished=True), "f": request(0, prefill=True)}
    made = scheduler(requests=requests)
    clock = clock_of(made)
    names = [*requests, "gone"]
    note_cut_drafts(made, DraftTokenIds(names, [[5] * 7 for _ in names]))
    assert clock.cut == {"a": 7, "b": 7, "d": 7}
    clock.scheduled(output(7, {"a": 2, "b": 0, "c": 7}))
    assert clock.in_flight[0].steady and not Scheduled.of(output(7, {"a": 2, "b": 0, "c": 7})).steady
    clock.verified(2, 1, 2, "a")
    clock.verified(7, 7, 7, "c")
    step = clock.ended(idle=False)
    assert step.drafts == {2: (1, (1, 0)), 7: (1, (1,) * 7)}
    assert step.drafted == {7: (3, (2, 1, 1, 1, 1, 1, 1))}
    note_cut_drafts(made, DraftTokenIds(["c"], [[5] * 7]))
    assert clock.cut == {}


def scheduler(**given):
    made = SimpleNamespace(is_encoder_decoder=True, num_spec_tokens=7, log_stats=True, running=[1])
    made.__dict__.update(given)
    return made


def test_vllms_own_counters_stay_and_a_grammars_refusals_are_no_drafts():
    plugin.register()
    made = scheduler()
    stats = Scheduler.make_spec_decoding_stats(made, None, 3, 1, {"a": 2}, "a")
    stats = Scheduler.make_spec_decoding_stats(made, stats, 3, 3, None, "b")
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (2, 4, 4)
    clock = made._t5gemma2_clock
    assert clock.drafts == {1: [1, 1], 3: [1, 1, 1, 1]}
    assert clock.before_trimming == {
        3: [2, 2, 1, 1]
    }  # refused, as the verifier cannot say what a grammar forbids
    other = scheduler(is_encoder_decoder=False)
    assert Scheduler.make_spec_decoding_stats(other, None, 3, 1, None, "a").num_drafts == 1
    assert not hasattr(other, "_t5gemma2_clock")


def test_a_step_reaches_the_front_end_through_its_decoder():
    plugin.register()
    carrier = EngineCoreOutputs.__annotations__["scheduler_stats"].__args__[0]
    assert issubclass(carrier, SchedulerStats) and carrier is not SchedulerStats
    step = StepStats(3, 2, 0.25, {3: (2, (2, 1, 0))})
    sent = EngineCoreOutputs(scheduler_stats=carrier(num_running_reqs=2, **{STEP_FIELD: step}))
    got = msgspec.msgpack.Decoder(EngineCoreOutputs).decode(msgspec.msgpack.encode(sent)).scheduler_stats
    assert got.num_running_reqs == 2
    assert step_stats(got) == step
    assert step_stats(SchedulerStats()) is None and step_stats(None) is None


def test_vllms_scheduler_output_has_what_is_read_of_it():
    fields = {field.name for field in dataclasses.fields(SchedulerOutput)}
    assert vars(A).keys() <= fields
    assert "resumed_req_ids" in {field.name for field in dataclasses.fields(CachedRequestData)}
