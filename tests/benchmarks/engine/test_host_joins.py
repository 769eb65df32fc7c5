"""Calls in which requests join others, with an engine that only counts: which are of which kind, and what they did."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.engine.host_joins import (
    ADMITS,
    BEHIND,
    FOLLOWS,
    LONGEST,
    OTHERS,
    Joins,
    Round,
    Step,
    did,
    kind_of,
    measure,
    scheduled,
)
from benchmarks.engine.joins_report import head, longest, report
from benchmarks.engine.phases import OUTSIDE, Times

TOKENS = 40
EVERY = 6


def prompt(length: int) -> Any:
    return SimpleNamespace(mm_position=SimpleNamespace(get_num_embeds=lambda: length))


class Engine:
    """A token a request and step, one step behind; its scheduler says what it began. Requests are named by number."""

    def __init__(self) -> None:
        self.left: dict[str, int] = {}
        self.waiting: list[str] = []
        self.ended: set[str] = set()
        self.flying: deque[list[str]] = deque()
        self.steps = 0
        self.scheduler = SimpleNamespace(schedule=self.schedule)

    def add(self, count: int, tokens: int) -> list[str]:
        names = [f"r{len(self.left) + i}" for i in range(count)]
        self.left |= dict.fromkeys(names, tokens)
        self.waiting += names
        return names

    def schedule(self) -> Any:
        new, self.waiting = self.waiting, []
        ended, self.ended = self.ended, set()
        running = [name for name, left in self.left.items() if left - self.in_flight(name) > 0]
        return SimpleNamespace(
            scheduled_new_reqs=[SimpleNamespace(req_id=name, mm_features=[prompt(64)]) for name in new],
            scheduled_encoder_inputs={name: [0] for name in new}, num_scheduled_tokens=dict.fromkeys(running, 1),
            scheduled_cached_reqs=SimpleNamespace(
                resumed_req_ids=set(), new_block_ids=[None if self.steps % 4 else ([7],)]
            ),
            total_num_scheduled_tokens=len(running), finished_req_ids=ended, preempted_req_ids=None,
            free_encoder_mm_hashes=[], ec_manager_metadata=None,
        )  # fmt: skip

    def in_flight(self, name: str) -> int:
        return sum(name in names for names in self.flying)

    def step(self) -> list[Any]:
        self.steps += 1
        self.flying.append(list(self.scheduler.schedule().num_scheduled_tokens))
        if len(self.flying) < 2:
            return []
        outputs = []
        for name in self.flying.popleft():
            self.left[name] -= 1
            if not self.left[name]:
                self.ended.add(name)
            outputs.append(SimpleNamespace(request_id=name, outputs=[SimpleNamespace(token_ids=[5])]))
        return outputs

    def has_unfinished_requests(self) -> bool:
        return any(self.left.values())


@pytest.fixture
def engine() -> Engine:
    return Engine()


def joins(admit: int = 2) -> Joins:
    return Joins(admit, 3, EVERY, True)


def test_calls_are_of_the_kind_that_their_place_behind_an_admission_makes_them(engine: Engine) -> None:
    made = Round(engine, engine.scheduler, engine.add)
    steps = made.run(joins(), TOKENS, TOKENS - 3)
    assert [step.kind for step in steps[:EVERY]] == [ADMITS, FOLLOWS, FOLLOWS, *[OTHERS] * 3]
    assert [step.kind for step in steps] == [kind_of(i % EVERY) for i in range(len(steps))]
    for step in steps:
        admitted = {"admitted": 2, "encoder tokens": 128} if step.kind == ADMITS else {}
        assert {name: n for name, n in step.did.items() if name in ("admitted", "encoder tokens")} == admitted
        # The token is there in the next call, and what ended is let go in the one behind.
    assert [step.did.get("let go", 0) for step in steps[:EVERY]] == [0, 0, 2, 0, 0, 0]
    assert len(made.first_tokens) == len(made.adding) == -(-len(steps) // EVERY)
    assert not engine.has_unfinished_requests()
    assert "schedule" in vars(engine.scheduler) and engine.scheduler.schedule == engine.schedule


def test_those_that_join_may_be_other_requests(engine: Engine) -> None:
    """With longer prompts, say."""
    added: list[tuple[int, int]] = []

    def joining(count: int, tokens: int) -> list[str]:
        added.append((count, tokens))
        return engine.add(count, tokens)

    steps = Round(engine, engine.scheduler, engine.add, joining).run(joins(), TOKENS, TOKENS - 3)
    assert added == [(2, 1)] * -(-len(steps) // EVERY)


def test_without_admissions_every_call_is_another(engine: Engine) -> None:
    steps = Round(engine, engine.scheduler, engine.add).run(joins(admit=0), TOKENS, TOKENS - 3)
    assert {step.kind for step in steps} == {OTHERS}
    assert all("admitted" not in step.did for step in steps)


def test_rounds_of_three_kinds_fill_what_is_reported(engine: Engine) -> None:
    found = joins()
    core = SimpleNamespace(scheduler=engine.scheduler, step_fn=None)
    roots = {"engine": engine, "core": core, "runner": None}
    measure(lambda: Round(engine, engine.scheduler, engine.add), found, roots, TOKENS, TOKENS - 3, 1, 2)
    assert set(found.seconds) == set(found.phases) == set(found.functions) == {ADMITS, FOLLOWS, OTHERS}
    assert found.phases[ADMITS]["schedule"].calls == 1
    assert found.phases[OTHERS]["schedule"].calls == 1
    assert OUTSIDE in found.phases[ADMITS]
    assert "runner.execute_model" in found.missing
    called = found.functions[ADMITS]["engine/test_host_joins:schedule"].calls
    assert called == found.functions[OTHERS]["engine/test_host_joins:schedule"].calls == 1
    assert len(found.longest) == LONGEST
    assert [step.seconds for step in found.longest] == sorted(
        (step.seconds for step in found.longest), reverse=True
    )
    assert Joins.read(json.loads(json.dumps(asdict(found)))) == found
    text = report("raw", found, top=5)
    assert "raw: 2 join 3 once in 6 calls of the engine's step (asynchronous scheduling)" in text
    assert "us a call by function under cProfile, that admit" in text
    assert "not in this engine:" in text


def test_what_a_step_did_is_told_without_what_is_zero(engine: Engine) -> None:
    engine.add(1, 3)
    with scheduled(engine.scheduler) as outputs:
        engine.step()
    assert did(outputs[0]) == {"requests": 1, "tokens": 1, "admitted": 1, "encoder tokens": 64}
    step = Step(
        FOLLOWS, 2e-3, {"let go": 3}, {"schedule": Times(1e-4, 1e-4, 1), "sample": Times(9e-4, 1e-3, 1)}
    )
    assert longest(step) == "  2000 us, of those behind them (let go 3): sample 900, schedule 100"
    assert "nothing was scheduled" in longest(Step(OTHERS, 1e-3, {}))


def test_the_head_has_what_a_stream_feels_and_the_gpus_part() -> None:
    found = Joins(
        1, 4, 8, False, {ADMITS: [4e-3], FOLLOWS: [1e-3] * BEHIND, OTHERS: [1e-3] * 5}, [2.5e-4], [3.4e-3],
        gpu_busy=9e-4, gpu_admission=1.1e-3,
    )  # fmt: skip
    lines = head("raw", found).splitlines()
    assert lines[0].endswith("(synchronous scheduling)")
    assert lines[2].split() == ["that", "admit", "1", "4000", "4000", "4000"]
    assert lines[5] == "  the longest call is 4.00 times the median of all others"
    assert lines[6] == "  the front end takes 250 us to add a request"
    assert lines[7].startswith("  3400 us from")
    assert lines[8].endswith("900 us of a call while none joins, and for 1100 us more for an admission")
