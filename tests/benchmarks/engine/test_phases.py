"""The host's time by phase and by function, from made-up clocks and profiles."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks.engine import phases
from benchmarks.engine.phases import (
    OUTSIDE,
    PhaseClock,
    Times,
    difference,
    functions,
    in_order,
    short_name,
    timed,
)


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at

    def spend(self, seconds: float) -> None:
        self.at += seconds


def test_a_phase_within_a_phase_is_taken_off_the_outer_ones_own_time() -> None:
    now = Clock()
    clock = PhaseClock(now)
    sample = clock.around("sample", lambda: now.spend(2.0))

    def step() -> None:
        now.spend(1.0)
        sample()
        now.spend(3.0)
        sample()

    step = clock.around("step", step)
    clock.start()
    step()
    now.spend(0.5)
    clock.stop()
    assert clock.times["sample"] == Times(own=4.0, whole=4.0, calls=2)
    assert clock.times["step"] == Times(own=4.0, whole=8.0, calls=1)
    assert clock.times[OUTSIDE].own == 0.5
    assert sum(times.own for times in clock.times.values()) == now.at - 100.0


def test_what_is_called_before_the_start_or_fails_is_not_lost_and_not_counted_twice() -> None:
    now = Clock()
    clock = PhaseClock(now)

    def fail() -> None:
        now.spend(1.0)
        raise ValueError("no")

    failing = clock.around("schedule", fail)
    with pytest.raises(ValueError, match="no"):
        failing()
    assert not clock.times
    clock.start()
    with pytest.raises(ValueError, match="no"):
        clock.around("step", failing)()
    clock.stop()
    assert (clock.times["schedule"].own, clock.times["step"].own, clock.times[OUTSIDE].own) == (1.0, 0.0, 0.0)


class Scheduler:
    def schedule(self, tokens: int) -> int:
        return 2 * tokens


def test_clocks_go_around_what_is_there_and_are_taken_off_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Scheduler()
    core = SimpleNamespace(scheduler=scheduler, step_fn=lambda: "outputs")
    places = (
        ("core", ("core.step_fn",)),
        ("schedule", ("core.scheduler.schedule",)),
        ("gone", ("core.scheduler.plan", "core.queue.put", "runner.sample", "no_such_module:function")),
        ("math", ("tests.benchmarks.engine.test_phases:Scheduler.schedule",)),
    )
    monkeypatch.setattr(phases, "PLACES", places)
    clock, own = PhaseClock(), core.step_fn
    with timed(clock, {"core": core, "runner": None}) as missing:
        clock.start()
        assert (core.step_fn(), scheduler.schedule(3), Scheduler().schedule(tokens=4)) == ("outputs", 6, 8)
        clock.stop()
    assert missing == ["core.scheduler.plan", "core.queue.put", "runner.sample", "no_such_module:function"]
    assert {name: times.calls for name, times in clock.times.items()} == {
        "core": 1,
        "schedule": 1,
        "math": 1,
        OUTSIDE: 0,
    }
    assert core.step_fn is own
    assert "schedule" not in vars(scheduler)
    assert Scheduler.schedule.__qualname__ == "Scheduler.schedule"


def test_phases_come_a_step_in_the_steps_order() -> None:
    (first, _), *_, (last, _) = phases.PLACES
    found = in_order({OUTSIDE: Times(1.0, 9.0), last: Times(2.0, 2.0, 4), first: Times(6.0, 8.0, 4)}, steps=4)
    assert list(found.items()) == [
        (first, Times(1.5, 2.0, 1.0)),
        (last, Times(0.5, 0.5, 1.0)),
        (OUTSIDE, Times(0.25, 2.25, 0.0)),
    ]


def test_a_profile_is_summed_by_module_and_function_a_step() -> None:
    stats = {
        ("/lib/vllm/v1/core/sched/scheduler.py", 10, "schedule"): (8, 8, 0.4, 1.2, {}),
        ("/lib/vllm/v1/core/sched/scheduler.py", 99, "schedule"): (4, 4, 0.4, 0.4, {}),
        ("~", 0, "<built-in method torch.empty>"): (20, 40, 0.2, 0.2, {}),
    }
    found = functions(stats, steps=4)
    assert found["sched/scheduler:schedule"] == pytest.approx(Times(0.2, 0.4, 3.0))
    # Of a recursive function all calls count, not the outermost alone.
    assert found["torch.empty"] == pytest.approx(Times(0.05, 0.05, 10.0))


@pytest.mark.parametrize(
    ("file", "function", "name"),
    [
        ("/lib/vllm/v1/worker/gpu/model_runner.py", "sample", "gpu/model_runner:sample"),
        ("/lib/plugin/vllm_hooks/__init__.py", "install", "plugin/vllm_hooks:install"),
        ("~", "<method 'append' of 'list' objects>", "'append' of 'list' objects"),
        ("<string>", "__init__", "<string>:__init__"),
        ("~", "<function Tensor.unflatten at 0x7f4a58c0a0c0>", "function Tensor.unflatten"),
    ],
)
def test_names_are_short(file: str, function: str, name: str) -> None:
    assert short_name(file, function) == name


def test_what_a_draft_costs_is_what_it_adds_and_what_it_saves() -> None:
    draft = {"schedule": Times(3.0, 4.0, 1.0), "propose": Times(5.0, 5.0, 1.0)}
    raw = {"schedule": Times(1.0, 1.5, 1.0), "argmax": Times(2.0, 2.0, 1.0)}
    assert difference(draft, raw) == {
        "schedule": Times(2.0, 2.5, 0.0),
        "propose": Times(5.0, 5.0, 1.0),
        "argmax": Times(-2.0, -2.0, -1.0),
    }


def test_a_table_of_the_top_has_what_was_saved_as_well() -> None:
    times = {
        "small": Times(1e-6, 1e-6, 1.0),
        "spent": Times(3e-6, 9e-6, 2.0),
        "saved": Times(-2e-6, 0.0, 0.0),
    }
    lines = phases.table("title", times, top=2).splitlines()
    assert [line.split()[-1] for line in lines[2:]] == ["spent", "saved"]
    assert lines[2].split() == ["3.0", "9.0", "2.00", "spent"]
    assert [line.split()[-1] for line in phases.table("title", times).splitlines()[2:]] == [
        "small",
        "spent",
        "saved",
    ]
