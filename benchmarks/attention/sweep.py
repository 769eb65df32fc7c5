"""Times every launch shape worth trying on every workload: where the numbers of `launch_shape.py` come from."""

import itertools
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import torch

from benchmarks.attention.timing import graph_us
from benchmarks.attention.workloads import WORKLOADS, Workload, kernel_calls
from plugin.attention.launch_shape import FUSED_ROWS, LaunchShape, power_of_two

GROUP = 4
TILES = [
    (n, warps, stages)
    for n, warps, stages in itertools.product((16, 32, 64), (2, 4, 8), (2, 3, 4))
    if n // 8 >= warps // 2 and n * stages <= 192
]
"""Keys of a tile, warps, pipeline stages."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One timed launch shape."""

    workload: str
    launch: LaunchShape
    us: float


def _block_m(workload: Workload) -> int:
    return min(max(power_of_two(workload.query_len * GROUP), 16), 64)


def _launch(
    workload: Workload, tile: tuple[int, int, int], splits: int, *, fused: bool = False
) -> LaunchShape:
    block_m = _block_m(workload)
    return LaunchShape(block_m, *tile, splits, -(-workload.query_len * GROUP // block_m), fused=fused)


def _launches(workload: Workload, tile: tuple[int, int, int]) -> Iterator[LaunchShape]:
    for splits in split_candidates(workload):
        yield _launch(workload, tile, splits)
        if 1 < splits <= FUSED_ROWS // _block_m(workload):
            yield _launch(workload, tile, splits, fused=True)


def _compile(query_len: int, tile: tuple[int, int, int]) -> str | None:
    """Compile one tile into Triton's cache on disk; the error where it needs more than the device has."""
    small = Workload("", 1, query_len, 40, 40)
    try:
        for splits, fused in ((1, False), (2, False), (2, True)):
            kernel_calls(small, [small.batch()], _launch(small, tile, splits, fused=fused))[0]()
        torch.cuda.synchronize()
    except Exception as error:  # out of shared memory or registers: this tile is not a candidate
        return f"{query_len} {tile}: {error}"
    return None


def split_candidates(workload: Workload) -> list[int]:
    """One to about eight programs for each of 132 multiprocessors, at most one for each 32 tokens."""
    most = max(-(-(workload.cross_len + workload.self_len) // 32), 1)
    wanted = [132 * per_sm // workload.requests for per_sm in (1, 2, 3, 4)]
    return sorted({min(max(n, 1), most, 256) for n in (1, *wanted, most // 2, most // 4)} - {0})


def sweep(workers: int, names: str = "") -> list[Trial]:
    """All trials of the workloads whose name holds `names`, fastest first within a workload."""
    workloads = [w for w in WORKLOADS if names in w.name and not w.captured_len]
    jobs = list(itertools.product(sorted({w.query_len for w in workloads}), TILES))
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        errors = list(pool.map(_compile, *zip(*jobs, strict=True)))
    usable = {job for job, error in zip(jobs, errors, strict=True) if error is None}
    trials: list[Trial] = []
    for workload in workloads:
        batches = workload.copies()
        mine = [
            Trial(workload.name, launch, graph_us(kernel_calls(workload, batches, launch), replays=5))
            for tile in TILES
            if (workload.query_len, tile) in usable
            for launch in _launches(workload, tile)
        ]
        trials += sorted(mine, key=lambda trial: trial.us)
    return trials
