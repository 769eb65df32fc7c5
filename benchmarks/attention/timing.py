"""Time of GPU work by CUDA graph replay, and the two ceilings: copy bandwidth and the launch floor."""

import statistics
from collections.abc import Callable, Sequence

import torch

REPLAYS = 15
LAUNCH_FLOOR_US = 5.0
"""What one launch is granted however few bytes it reads."""


def require_gpu() -> None:
    """Ends the program in one line where PyTorch sees no GPU."""
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device: nothing is measured")


def graph_us(calls: Sequence[Callable[[], object]], replays: int = REPLAYS) -> float:
    """Microseconds per call: median over replays of one graph that holds all calls once.

    Give as many calls over different data as it takes to outgrow the L2 cache.
    """
    return graphs_us([calls], replays)[0]


def graphs_us(alternatives: Sequence[Sequence[Callable[[], object]]], replays: int = REPLAYS) -> list[float]:
    """The same of each of several sets of calls, whose replays take turns: all of them at the same clocks, and each
    behind another one's. Measured one after the other, the later ones may find a GPU that the first has woken, and
    what it has left in the cache.
    """
    graphs = [_captured(calls) for calls in alternatives]
    times: list[list[float]] = [[] for _ in graphs]
    for i in range(1 + replays):
        for graph, calls, mine in zip(graphs, alternatives, times, strict=True):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            if i:  # the first is a warm-up
                mine.append(start.elapsed_time(end) * 1000 / len(calls))
    return [statistics.median(mine) for mine in times]


def _captured(calls: Sequence[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        calls[0]()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def copy_bandwidth(gigabytes: float = 4.0) -> float:
    """Bytes read plus written per second by a large device-to-device copy. Launched directly: in a graph
    the copy is a memcpy node, which was seen at two thirds of the speed."""
    source = torch.randn(int(gigabytes * 1e9) // 4, device="cuda")
    target = torch.empty_like(source)
    times = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e-3)
    return 2 * source.nbytes / statistics.median(times)
