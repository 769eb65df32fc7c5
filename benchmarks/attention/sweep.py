"""Times the launch shapes worth trying on every workload: where the numbers of `launch_shape.py` come from.

A shape is compiled before any is timed, by processes side by side: those that are not done in time are left out.
"""

import itertools
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import torch

from benchmarks.attention.timing import graph_us
from benchmarks.attention.workloads import WORKLOADS, Workload, kernel_calls
from plugin.attention.launch_shape import LaunchShape, join_block_s, power_of_two

GROUP = 4
COMPILE_S = 75.0
SHORT_KEYS, MANY_KEYS = 512, 512 * 132

# Keys of a tile, warps, pipeline stages.
SHORT_TILES = ((32, 4, 2), (32, 4, 3), (64, 4, 2), (64, 8, 2), (64, 4, 3), (64, 8, 3), (32, 2, 3))
LONG_TILES = ((32, 4, 3), (32, 4, 4), (64, 4, 3), (64, 8, 3), (64, 8, 2))
MANY_TILES = (
    *((16, 2, 3), (16, 2, 4), (16, 4, 3), (16, 4, 4), (32, 2, 3), (32, 4, 2), (32, 4, 3), (32, 4, 4)),
    *((32, 8, 3), (64, 4, 2), (64, 4, 3), (64, 8, 2), (64, 8, 3)),
)


@dataclass(frozen=True, slots=True)
class Trial:
    """One timed launch shape."""

    workload: str
    launch: LaunchShape
    us: float


def candidates(workload: Workload) -> Iterator[LaunchShape]:
    """Launch shapes worth trying: with as many rows as there are, and for many keys with 64, most of them empty."""
    block_m = min(max(power_of_two(workload.query_len * GROUP), 16), 64)
    yield from _candidates(workload, block_m)
    if block_m < 64 and workload.requests * (workload.cross_len + workload.self_len) > SHORT_KEYS * 32:
        yield from (
            launch for launch in _candidates(workload, 64) if launch.num_warps > 2 and launch.slices < 4
        )


def _candidates(workload: Workload, block_m: int) -> Iterator[LaunchShape]:
    """By how many keys there are."""
    rows, n = workload.query_len * GROUP, workload.requests
    row_blocks = -(-rows // block_m)
    keys = workload.cross_len + workload.self_len

    def shape(
        tile: tuple[int, int, int], splits: int, split_tokens: int, *, fused: bool, slices: int = 1
    ) -> LaunchShape:
        return LaunchShape(block_m, *tile, splits, row_blocks, split_tokens, fused, slices)

    if n * keys >= MANY_KEYS:
        for tile, splits, fused in itertools.product(MANY_TILES, (1, 2, 3, 4, 6, 8), (False, True)):
            if not (fused and splits == 1):
                yield shape(tile, splits, 64, fused=fused)
    elif keys > SHORT_KEYS:
        for tile, slices, programs in itertools.product(LONG_TILES, (1, 2, 4, 8), (66, 132, 264)):
            splits = max(programs // n // slices, 1)
            for fused in (False, True) if slices == 1 else (True,):
                if splits <= (64 if fused else 256):
                    yield shape(tile, splits, 64, fused=fused, slices=slices)
    else:
        for tile, slices, tokens in itertools.product(SHORT_TILES, (1, 2, 4, 8), (32, 64, 128, keys)):
            if tokens < tile[0] or n * slices > 132:
                continue
            most = -(-(2 * workload.captured_len or keys) // tokens)
            splits = min(most, 16, max(264 // n // slices, 1))
            for fused in (False, True) if slices == 1 and splits > 1 else (True,):
                yield shape(tile, splits, tokens, fused=fused, slices=slices)


def _program(query_len: int, launch: LaunchShape) -> tuple[object, ...]:
    """What a launch compiles: launches of one program differ in numbers that are given at run time."""
    split = launch.splits > 1
    joined = join_block_s(launch.splits) if split and launch.fused else split
    tile = (launch.block_m, launch.block_n, launch.num_warps, launch.num_stages)
    return (query_len, *tile, launch.slices, joined)


def _compile(query_len: int, launch: LaunchShape) -> str | None:
    """Compile one program into Triton's cache on disk; the error where it needs more than the device has."""
    small = Workload("", 1, query_len, 40, 40)
    try:
        kernel_calls(small, [small.batch()], launch)[0]()
        torch.cuda.synchronize()
    except Exception as error:  # out of shared memory or registers: not a candidate
        return f"{query_len} {launch}: {error}"
    return None


def _compiled(
    workers: int, programs: dict[tuple[object, ...], tuple[int, LaunchShape]]
) -> set[tuple[object, ...]]:
    """Those of `programs` that compile in `COMPILE_S`."""
    until = time.monotonic() + COMPILE_S
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    futures = {program: pool.submit(_compile, *job) for program, job in programs.items()}
    usable = set()
    for program, future in futures.items():
        try:
            if future.result(max(until - time.monotonic(), 0.01)) is None:
                usable.add(program)
        except TimeoutError:
            future.cancel()
    pool.shutdown(wait=True, cancel_futures=True)
    print(f"{len(usable)} of {len(programs)} programs compiled")
    return usable


def sweep(workers: int, names: str = "") -> list[Trial]:
    """All trials of the workloads whose name holds `names`, fastest first within a workload."""
    workloads = [w for w in WORKLOADS if names in w.name and w.window is None]
    programs = {
        _program(w.query_len, launch): (w.query_len, launch) for w in workloads for launch in candidates(w)
    }
    usable = _compiled(workers, programs)
    trials: list[Trial] = []
    for workload in workloads:
        batches = workload.copies()
        mine = [
            Trial(workload.name, launch, graph_us(kernel_calls(workload, batches, launch), replays=5))
            for launch in candidates(workload)
            if _program(workload.query_len, launch) in usable
        ]
        trials += sorted(mine, key=lambda trial: trial.us)
    return trials
