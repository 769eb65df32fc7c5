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
from benchmarks.linear.candidates import cuts
from benchmarks.linear.stack import CONTEXT_SHAPES, SHAPES, Stack, random
from benchmarks.linear.ways import MOST_TOKENS, Way, described
from plugin.projection import triton_linear
from plugin.projection.triton_linear import Cut

ALL_SHAPES: Final = {**SHAPES, **CONTEXT_SHAPES}
REPLAYS = 7
BEST = 3
"""Of a projection's candidates these are printed."""
GATED: Final = ("gate_up",)


class Compiling:
    """Stands for a Triton program where that is launched, and has it compiled instead."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return partial(self.kernel.warmup, grid=grid)


def compile_ahead(tokens: int, tried: Iterable[tuple[str, Cut]]) -> None:
    """What each cut launches for the projection named beside it, all at once, in as many threads as there are cores:
    one after another programs take longer to compile than to measure."""
    kernel = Compiling(triton_linear.few_tokens_kernel)
    with (
        ThreadPoolExecutor(os.cpu_count()) as pool,
        triton.AsyncCompileMode(pool, ignore_errors=True),
        mock.patch.object(triton_linear, "few_tokens_kernel", kernel),
    ):
        for name, cut in tried:
            outputs, inputs = ALL_SHAPES[name]
            x, weight = random(tokens, inputs), random(outputs, inputs)
            triton_linear.project_parts(x, weight, cut, "gelu" if name in GATED else "")


def us(stack: Stack, way: Way) -> float:
    """Microseconds: a decoder's by layer."""
    return stack.per_layer(graph_us([way.of(stack.step)], REPLAYS))


def sweep(stack: Stack, names: Sequence[str]) -> Way:
    """Print the best candidates of the projections `names`, and the best ones together, which are returned. Beyond the
    tokens that our program serves all other projections are by it as well."""
    ours = Way(max_tokens=max(Way.max_tokens, min(stack.tokens, MOST_TOKENS)))
    compile_ahead(stack.tokens, ((name, cut) for name in names for cut in cuts(name)))
    together = ours
    as_it_is = us(stack, ours)
    print(f"    as it is {as_it_is:6.2f}")
    for name in names:
        timed = _timed(stack, {cut: replace(ours, cuts={ALL_SHAPES[name]: cut}) for cut in cuts(name)})
        print(f"    {name}")
        for found, cut in timed[:BEST]:
            print(f"        {found:6.2f} {described(cut)}", flush=True)
        if timed and timed[0][0] < as_it_is:
            together = replace(together, cuts={**together.cuts, ALL_SHAPES[name]: timed[0][1]})
    print(f"    the best of each together {us(stack, together):6.2f}", flush=True)
    return together


def _timed(stack: Stack, ways: Mapping[Cut, Way]) -> list[tuple[float, Cut]]:
    """Microseconds of each, the least first, without those that a multiprocessor has no room for."""
    timed = []
    for cut, way in ways.items():
        with suppress(OutOfResources):
            timed.append((us(stack, way), cut))
    torch.cuda.empty_cache()
    return sorted(timed, key=lambda one: one[0])
