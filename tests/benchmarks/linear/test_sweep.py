"""Which candidates a sweep takes together, on times that are made up."""

from types import SimpleNamespace

import pytest

from benchmarks.linear import sweep
from benchmarks.linear.candidates import cuts
from benchmarks.linear.stack import SHAPES
from benchmarks.linear.ways import Way, described
from plugin.projection import few_tokens

AS_IT_IS = 30.0


@pytest.fixture
def times(monkeypatch):
    """By shape and cut what it takes off the time; whatever is not there costs more."""
    gains = {}

    def us(stack, way):
        return AS_IT_IS - sum(gains.get(one, -1.0) for one in way.cuts.items())

    monkeypatch.setattr(sweep, "us", us)
    monkeypatch.setattr(sweep, "compile_ahead", lambda tokens, tried: list(tried))
    monkeypatch.setattr(sweep.torch.cuda, "empty_cache", lambda: None)
    return gains


def test_the_best_of_each_that_is_better_than_now_is_taken(times, capsys):
    down, o = list(cuts("down")), list(cuts("o"))
    times[SHAPES["down"], down[3]], times[SHAPES["down"], down[5]] = 2.0, 3.0
    times[SHAPES["o"], o[-1]] = 0.5
    together = sweep.sweep(SimpleNamespace(tokens=8), ("qkv", "o", "down"))
    assert together.cuts == {SHAPES["o"]: o[-1], SHAPES["down"]: down[5]}
    printed = capsys.readouterr().out
    assert printed.startswith("    as it is  30.00\n")
    assert f"    down\n         27.00 {described(down[5])}\n         28.00 {described(down[3])}\n" in printed
    assert printed.endswith("the best of each together  26.50\n")


def test_more_tokens_than_are_served_are_tried(times):
    few = sweep.sweep(SimpleNamespace(tokens=8), ())
    many = sweep.sweep(SimpleNamespace(tokens=2 * few_tokens.MAX_TOKENS), ())
    assert (few.max_tokens, many.max_tokens) == (few_tokens.MAX_TOKENS, 2 * few_tokens.MAX_TOKENS)


def test_what_has_no_room_is_left_out(times, monkeypatch):
    first, second, *_ = cuts("qkv")

    def us(stack, way):
        if way.cuts.get(SHAPES["qkv"]) == first:
            raise sweep.OutOfResources(300_000, 232_448, "shared memory")
        return AS_IT_IS - (way.cuts.get(SHAPES["qkv"]) == second)

    monkeypatch.setattr(sweep, "us", us)
    assert sweep.sweep(SimpleNamespace(tokens=8), ("qkv",)).cuts == {SHAPES["qkv"]: second}


def test_a_way_holds_while_it_is_taken():
    shape, cut = SHAPES["o"], next(cuts("o"))
    way = Way(max_tokens=1, cuts={shape: cut})
    before = few_tokens.MAX_TOKENS

    def step():
        from plugin.projection import triton_linear

        return (
            few_tokens.MAX_TOKENS,
            triton_linear.choose_cut(*shape, 64),
            triton_linear.choose_cut(20, 64, 1),
        )

    assert way.of(step)() == (1, cut, None)
    assert before == few_tokens.MAX_TOKENS
