"""Which candidates a sweep takes together, on times that are made up."""

from types import SimpleNamespace

import pytest

from benchmarks.linear import sweep
from benchmarks.linear.candidates import trials
from benchmarks.linear.stack import SHAPES
from benchmarks.linear.ways import Way

AS_IT_IS = 30.0


@pytest.fixture
def times(monkeypatch):
    """By trial what it takes off the time; whatever is not there costs more."""
    gains = {}

    def us(stack, way):
        return AS_IT_IS - sum(gains.get(trial, -1.0) for trial in way.trials.values())

    monkeypatch.setattr(sweep, "us", us)
    monkeypatch.setattr(sweep, "compile_ahead", lambda tokens, ways: list(ways))
    monkeypatch.setattr(sweep.torch.cuda, "empty_cache", lambda: None)
    return gains


def test_the_best_of_each_that_is_better_than_now_is_taken(times, capsys):
    down = list(trials("down"))
    times[down[3]], times[down[5]] = 2.0, 3.0
    o = list(trials("o"))[-1]
    times[o] = 0.5
    together = sweep.sweep(SimpleNamespace(tokens=8), ("qkv", "o", "down"))
    assert together.trials == {SHAPES["o"]: o, SHAPES["down"]: down[5]}
    printed = capsys.readouterr().out
    assert f"down, as it is  30.00\n         27.00 {down[5]}\n         28.00 {down[3]}\n" in printed
    assert printed.endswith("the best of each together  26.50\n")


def test_gate_and_up_are_tried_beyond_their_tokens(times, monkeypatch):
    monkeypatch.setattr(sweep, "MOST_TOKENS", Way.gated_tokens + 16)
    tried = []
    monkeypatch.setattr(sweep, "compile_ahead", lambda tokens, ways: tried.extend(ways))
    gate_up = next(trials("gate_up"))
    times[gate_up] = 1.0
    together = sweep.sweep(SimpleNamespace(tokens=48), ("gate_up",))
    assert {way.gated_tokens for _, way in tried} == {sweep.MOST_TOKENS}
    assert (together.gated_tokens, together.trials) == (sweep.MOST_TOKENS, {SHAPES["gate_up"]: gate_up})


def test_what_has_no_room_is_left_out(times, monkeypatch):
    first, second, *_ = trials("qkv")

    def us(stack, way):
        if way.trials.get(SHAPES["qkv"]) == first:
            raise sweep.OutOfResources(300_000, 232_448, "shared memory")
        return AS_IT_IS - (way.trials.get(SHAPES["qkv"]) == second)

    monkeypatch.setattr(sweep, "us", us)
    assert sweep.sweep(SimpleNamespace(tokens=8), ("qkv",)).trials == {SHAPES["qkv"]: second}
