"""Times the candidates of each projection, the others as they are, then the best of each together."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final
from unittest import mock

import torch
import triton
from triton.runtime.errors import OutOfResources

from benchmarks.attention.timing import graph_us
from benchmarks.linear.candidates import Tiles, fetching, trials
from benchmarks.linear.stack import CONTEXT_SHAPES, SHAPES, Stack, random
from benchmarks.linear.ways import LET_IN, MOST_TOKENS, Trial, Way

ALL_SHAPES: Final = {**SHAPES, **CONTEXT_SHAPES}
REPLAYS = 7
BEST = 3
"""Of a projection's candidates these are printed."""
GATED: Final = ("gate_up",)
FAR: Final = tuple(megabytes << 20 for megabytes in (4, 8, 16, 24, 32))
"""Bytes ahead where launches are let in early, and fetch while the attention runs."""


class Compiling:
    """Stands for a Triton program where that is launched, and has it compiled instead."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return partial(self.kernel.warmup, grid=grid)


def compile_ahead(tokens: int, ways: Iterable[tuple[str, Way]]) -> None:
    """What each way launches for the projection named beside it, all at once, in as many threads as there are cores:
    one after another programs take longer to compile than to measure."""
    with ThreadPoolExecutor(os.cpu_count()) as pool, triton.AsyncCompileMode(pool, ignore_errors=True):
        for name, way in ways:
            outputs, inputs = ALL_SHAPES[name]
            x, weight = random(tokens, inputs), random(outputs, inputs)
            program, cut = way.program(outputs, inputs), way.cut(outputs, inputs, tokens)
            if cut is not None:
                with mock.patch.object(program, "few_tokens_kernel", Compiling(program.few_tokens_kernel)):
                    program.project_parts(x, weight, cut, "gelu" if name in GATED else "")


def us(stack: Stack, way: Way) -> float:
    """Microseconds: a decoder's by layer."""
    return stack.per_layer(graph_us([way.of(stack.step)], REPLAYS))


def sweep(stack: Stack, names: Iterable[str]) -> Way:
    """Print the best candidates of the projections `names`, and the best ones together, which are returned."""
    # Gate and up are tried beyond the tokens up to which our program serves them.
    ways = {
        name: {
            trial: Way(
                trials={ALL_SHAPES[name]: trial},
                gated_tokens=MOST_TOKENS if name in GATED else Way.gated_tokens,
            )
            for trial in trials(name)
        }
        for name in names
    }
    compile_ahead(stack.tokens, ((name, way) for name, mine in ways.items() for way in mine.values()))
    together = Way()
    for name, mine in ways.items():
        as_it_is = us(stack, Way())
        timed = _timed(stack, mine)
        _show(f"{name}, as it is {as_it_is:6.2f}", timed)
        if timed and timed[0][0] < as_it_is:
            trial = timed[0][1]
            together = replace(
                together,
                trials={**together.trials, ALL_SHAPES[name]: trial},
                gated_tokens=max(together.gated_tokens, mine[trial].gated_tokens),
            )
    print(f"    the best of each together {us(stack, together):6.2f}", flush=True)
    return together


def let_in(stack: Stack, way: Way) -> None:
    """Print what `way` and the present one take with launches let in early, whether the results are the same, and how
    much of gate, up and down is best fetched ahead then."""
    early = {"as it is": Way(let_in=True), "the best of each together": replace(way, let_in=True)}
    compile_ahead(stack.tokens, ((name, one) for one in early.values() for name in SHAPES))
    same = torch.equal(replayed(stack, Way()), replayed(stack, early["as it is"]))
    print(
        "    the same bits" if same else "    OTHER RESULTS: something is read before it is there", flush=True
    )
    for title, one in early.items():
        print(
            f"    {title} {us(stack, replace(one, let_in=False)):6.2f}, {LET_IN} {us(stack, one):6.2f}",
            flush=True,
        )
    for name in ("gate_up", "down"):
        shape = SHAPES[name]
        cut = way.cut(*shape, stack.tokens)
        changes = way.trials[shape].changes if shape in way.trials else ()
        if cut is not None:
            tiles = Tiles(cut.block_n, cut.block_k, cut.num_warps, cut.num_stages, cut.splits, changes)
            far = {
                trial: replace(way, trials={**way.trials, shape: trial}, let_in=True)
                for trial in fetching(name, tiles, FAR)
            }
            _show(f"{name}, {LET_IN}", _timed(stack, far))


def replayed(stack: Stack, way: Way) -> torch.Tensor:
    """What comes out of the captured step when it is replayed over and over."""
    step = way.of(stack.step)
    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    for _ in range(REPLAYS):
        graph.replay()
    assert isinstance(out, torch.Tensor)
    return out.clone()


def _timed(stack: Stack, ways: Mapping[Trial, Way]) -> list[tuple[float, Trial]]:
    """Microseconds of each, the least first, without those that a multiprocessor has no room for."""
    timed = []
    for trial, way in ways.items():
        with suppress(OutOfResources):
            timed.append((us(stack, way), trial))
    torch.cuda.empty_cache()
    return sorted(timed, key=lambda one: one[0])


def _show(title: str, timed: Sequence[tuple[float, Trial]]) -> None:
    print(f"    {title}")
    for found, trial in timed[:BEST]:
        print(f"        {found:6.2f} {trial}", flush=True)
