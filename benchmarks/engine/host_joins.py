"""Steps in which requests join others that run: how long they take, their phases and functions, and what they did.

With asynchronous scheduling a call of the engine's step schedules and launches one step and waits for the one before:
what an admission costs the host lies in the call that admits, what it costs the GPU in the call behind. So the calls of
a round are of three kinds: those that admit, the `BEHIND` calls after each, and all others.
"""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from benchmarks.engine.phases import PhaseClock, Times, functions, in_order, put, timed

ADMITS, FOLLOWS, OTHERS = KINDS = ("that admit", "behind them", "all others")
BEHIND = 2
"""Calls in which the admitted requests' tokens arrive and, if they were all, the requests are let go."""

LEAST_EVERY = 2 + BEHIND
LONGEST = 6
WARM_STEPS = 4


@dataclass(slots=True)
class Step:
    """One call of the engine's step.

    Attributes:
        kind: one of `KINDS`.
        seconds: wall time.
        did: what the scheduler gave the runner in it, by name; nothing that is zero.
        phases: by phase, where they were timed.
    """

    kind: str
    seconds: float
    did: dict[str, int]
    phases: dict[str, Times] = field(default_factory=dict)


@dataclass(slots=True)
class Joins:
    """What was measured of requests that join; times are seconds.

    Attributes:
        admit, beside, every: so many requests join so many others, once in so many calls.
        async_scheduling: whether a step is scheduled while the one before it is computed.
        seconds: of the calls by kind, undisturbed.
        adding: of the front end, a request.
        first_tokens: from the moment at which the first request of an admission is added to the last one's token.
        phases, functions: a call by kind, by phase and under cProfile by function.
        longest: calls of timed rounds.
        gpu_busy: time a call in which something runs on the GPU while no request joins; 0 without one.
        gpu_admission: how much longer it is busy for an admission.
        missing: functions that should have been timed and that this engine has not.
    """

    admit: int
    beside: int
    every: int
    async_scheduling: bool
    seconds: dict[str, list[float]] = field(default_factory=dict)
    adding: list[float] = field(default_factory=list)
    first_tokens: list[float] = field(default_factory=list)
    phases: dict[str, dict[str, Times]] = field(default_factory=dict)
    functions: dict[str, dict[str, Times]] = field(default_factory=dict)
    longest: list[Step] = field(default_factory=list)
    gpu_busy: float = 0.0
    gpu_admission: float = 0.0
    missing: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, sent: Mapping[str, Any]) -> Joins:
        """From its fields as `dataclasses.asdict` makes them and JSON sends them."""

        def times(by: Mapping[str, Any]) -> dict[str, Times]:
            return {name: Times(**each) for name, each in by.items()}

        read: dict[str, Any] = {
            name: {kind: times(by) for kind, by in sent[name].items()} for name in ("phases", "functions")
        }
        longest = [Step(**{**step, "phases": times(step["phases"])}) for step in sent["longest"]]
        return cls(**{**sent, **read, "longest": longest})


def did(output: Any) -> dict[str, int]:
    """What a step has to do, from vLLM's `SchedulerOutput`."""
    cached, encoded = output.scheduled_cached_reqs, output.scheduled_encoder_inputs
    features = [each.mm_features for each in output.scheduled_new_reqs if each.req_id in encoded]
    counts = {
        "requests": len(output.num_scheduled_tokens),
        "tokens": output.total_num_scheduled_tokens,
        "admitted": len(output.scheduled_new_reqs),
        "resumed": len(cached.resumed_req_ids),
        "encoder tokens": sum(one.mm_position.get_num_embeds() for each in features for one in each),
        "rows of a pass": getattr(output.ec_manager_metadata, "num_rows", 0),
        "with new blocks": sum(blocks is not None for blocks in cached.new_block_ids),
        "let go": len(output.finished_req_ids),
        "preempted": len(output.preempted_req_ids or ()),
        "states freed": len(output.free_encoder_mm_hashes),
    }
    return {name: count for name, count in counts.items() if count}


def kind_of(place: int) -> str:
    """Of the call so many behind the last that admitted."""
    if place == 0:
        return ADMITS
    return FOLLOWS if place <= BEHIND else OTHERS


@contextmanager
def scheduled(scheduler: Any) -> Iterator[list[Any]]:
    """What the scheduler gives the runner meanwhile."""
    outputs: list[Any] = []
    stock = scheduler.schedule

    def schedule(*args: Any, **kwargs: Any) -> Any:
        outputs.append(stock(*args, **kwargs))
        return outputs[-1]

    undo = put(scheduler, "schedule", schedule)
    try:
        yield outputs
    finally:
        undo()


class Round:
    """One run of requests beside which others join; it counts from when all of the former are running."""

    def __init__(self, engine: Any, scheduler: Any, add: Any, add_joining: Any = None) -> None:
        """`add(count, tokens)` adds requests of so many tokens each, and returns their names; `add_joining` those that
        join, if they are others."""
        self.engine, self.add, self._scheduler = engine, add, scheduler
        self.add_joining = add_joining or add
        self.adding: list[float] = []
        self.first_tokens: list[float] = []

    def run(
        self,
        joins: Joins,
        tokens: int,
        most: int,
        clock: PhaseClock | None = None,
        profiles: Mapping[str, cProfile.Profile] | None = None,
        around: AbstractContextManager[Any] | None = None,
    ) -> list[Step]:
        """The calls until a request has more than `most` of its `tokens`.

        Args:
            joins: how many join how many, and how often.
            tokens: of each request that the others join; those have one.
            clock: times the phases of each call.
            profiles: by kind, what profiles the calls of that kind.
            around: all of these calls are within it.
        """
        made = dict.fromkeys(self.add(joins.beside, tokens), 0)
        while not all(made.values()):
            self._step(made)
        for _ in range(WARM_STEPS):
            self._step(made)
        steps: list[Step] = []
        waiting: dict[str, float] = {}
        with scheduled(self._scheduler) as outputs, around or nullcontext():
            while max(made.values()) <= most:
                kind = kind_of(len(steps) % joins.every) if joins.admit else OTHERS
                if kind == ADMITS:
                    began = time.perf_counter()
                    waiting = dict.fromkeys(self.add_joining(joins.admit, 1), began)
                    self.adding.append((time.perf_counter() - began) / joins.admit)
                outputs.clear()
                seconds, phases = self._measured(kind, made, waiting, clock, profiles)
                given = [did(output) for output in outputs]
                steps.append(Step(kind, seconds, given[0] if given else {}, phases))
        while self.engine.has_unfinished_requests():
            self.engine.step()
        return steps

    def _measured(
        self,
        kind: str,
        made: dict[str, int],
        waiting: dict[str, float],
        clock: PhaseClock | None,
        profiles: Mapping[str, cProfile.Profile] | None,
    ) -> tuple[float, dict[str, Times]]:
        """Seconds of a call, and of its phases."""
        if clock is not None:
            clock.times = {}
            clock.start()
        if profiles is not None:
            profiles[kind].enable()
        began = time.perf_counter()
        outputs = self.engine.step()
        seconds = time.perf_counter() - began
        if profiles is not None:
            profiles[kind].disable()
        if clock is not None:
            clock.stop()
        self._count(outputs, made, waiting)
        return seconds, {} if clock is None else clock.times

    def _step(self, made: dict[str, int]) -> None:
        self._count(self.engine.step(), made, {})

    def _count(self, outputs: Sequence[Any], made: dict[str, int], waiting: dict[str, float]) -> None:
        for output in outputs:
            name = output.request_id
            if name in made:
                made[name] += len(output.outputs[0].token_ids)
            elif name in waiting:
                began = waiting.pop(name)
                if not waiting:
                    self.first_tokens.append(time.perf_counter() - began)


def measure(
    round_of: Any, joins: Joins, roots: Mapping[str, Any], tokens: int, most: int, warm: int, rounds: int
) -> None:
    """Fill `joins`; undisturbed, timed and profiled rounds take turns.

    Args:
        round_of: makes a new `Round`.
        joins: how many join how many.
        roots: see `phases.timed`.
        tokens, most: see `Round.run`.
        warm: rounds that are not counted.
        rounds: those that are.
    """
    clock, profiles = PhaseClock(), {kind: cProfile.Profile() for kind in KINDS}
    timed_steps: list[Step] = []
    profiled = dict.fromkeys(KINDS, 0)
    for i in range(warm + rounds):
        undisturbed = round_of()
        steps = undisturbed.run(joins, tokens, most)
        if i < warm:
            continue
        joins.adding += undisturbed.adding
        joins.first_tokens += undisturbed.first_tokens
        for step in steps:
            joins.seconds.setdefault(step.kind, []).append(step.seconds)
        with timed(clock, roots) as joins.missing:
            timed_steps += round_of().run(joins, tokens, most, clock)
        for step in round_of().run(joins, tokens, most, profiles=profiles):
            profiled[step.kind] += 1
    for kind in KINDS:
        if phases := [step.phases for step in timed_steps if step.kind == kind]:
            joins.phases[kind] = in_order(total(phases), len(phases))
        if profiled[kind]:
            stats: Any = pstats.Stats(profiles[kind])
            joins.functions[kind] = functions(stats.stats, profiled[kind])
    joins.longest = sorted(timed_steps, key=lambda step: -step.seconds)[:LONGEST]


def total(phases: Sequence[Mapping[str, Times]]) -> dict[str, Times]:
    """The sums of several calls' phases."""
    found: dict[str, Times] = {}
    for each in phases:
        for name, times in each.items():
            sums = found.setdefault(name, Times())
            sums.own += times.own
            sums.whole += times.whole
            sums.calls += times.calls
    return found
