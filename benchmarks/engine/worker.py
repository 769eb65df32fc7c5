"""What is measured inside vLLM's worker: each function takes the worker and travels there by `collective_rpc`.

Graphs are those of the V2 runner; without a GPU or without graphs the answers are empty.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from benchmarks.engine.critical_path import Share, device_events, shares

LOOPS, REPLAYS = 5, 50
PROFILES, PROFILED_REPLAYS = 3, 20
_PROFILER = "_benchmark_profiler"


def bandwidth(worker: Any) -> float:
    """Bytes read plus written a second by a large device-to-device copy; 0 without a GPU."""
    from benchmarks.attention.timing import copy_bandwidth

    return copy_bandwidth(2.0) if torch.cuda.is_available() else 0.0


def graph_seconds(worker: Any, batch: int, query_len: int) -> dict[str, list[float]]:
    """GPU seconds of a replay of the captured "verify" and "draft" steps of `batch` requests, one value a loop.

    Args:
        worker: vLLM's worker.
        batch: requests of the step.
        query_len: tokens a request: 1, or 1 + K with a draft.
    """
    found = {}
    for name, graph in _graphs(worker, batch, query_len).items():
        for _ in range(20):
            graph.replay()
        seconds = []
        for _ in range(LOOPS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(REPLAYS):
                graph.replay()
            end.record()
            end.synchronize()
            seconds.append(start.elapsed_time(end) / 1e3 / REPLAYS)
        found[name] = seconds
    return found


def attention_us(worker: Any, batch: int, query_len: int) -> dict[str, list[float]]:
    """Microseconds a layer of each of the plugin's attention kernels in the verify step, one value a loop.

    Time on the critical path, from the profiler's timestamps (`critical_path.shares`): each kernel's end minus the
    later of its own start and the latest end of what started before it, so that waiting inside a kernel that was
    launched early is not counted twice. The lengths are those of the last run, which the graph's buffers still hold.
    """
    graph = _graphs(worker, batch, query_len).get("verify")
    if graph is None:
        return {}
    ours = plugin_kernels()
    layers = int(worker.model_runner.model_config.hf_config.decoder.num_hidden_layers)
    found: dict[str, list[float]] = {}
    for loop in range(PROFILES):
        for name, share in _replayed(graph).items():
            kernel = max((one for one in ours if one in name), key=len, default=None)
            if kernel is not None:
                values = found.setdefault(kernel, [0.0] * PROFILES)
                values[loop] += share.critical_us / PROFILED_REPLAYS / layers
    return found


def graph_path(worker: Any, batch: int, query_len: int) -> dict[str, dict[str, dict[str, float]]]:
    """Of the captured "verify" and "draft" steps, by kernel: launches, microseconds on the critical path, of gap before
    them, and of duration, all for one replay."""
    return {
        step: {
            name: {field: value / PROFILED_REPLAYS for field, value in asdict(share).items()}
            for name, share in _replayed(graph).items()
        }
        for step, graph in _graphs(worker, batch, query_len).items()
    }


def _replayed(graph: Any) -> dict[str, Share]:
    """The kernels of `PROFILED_REPLAYS` replays."""
    graph.replay()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(PROFILED_REPLAYS):
            graph.replay()
        torch.cuda.synchronize()
    return shares(device_events(profiler))


def start_profile(worker: Any) -> None:
    """Begin to record GPU kernels; `stop_profile` ends it. Nothing without a GPU."""
    if not torch.cuda.is_available():
        return
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    profiler.start()
    setattr(worker, _PROFILER, profiler)


def stop_profile(worker: Any) -> dict[str, float]:
    """Microseconds by kernel on the critical path since `start_profile`; empty without a GPU."""
    if not torch.cuda.is_available():
        return {}
    torch.cuda.synchronize()
    profiler = getattr(worker, _PROFILER)
    profiler.stop()
    return {name: share.critical_us for name, share in shares(device_events(profiler)).items()}


def plugin_kernels() -> list[str]:
    """Names of the plugin's Triton kernels that compute attention: neither the page writes nor the norms.

    They are looked up, not listed, so that a kernel that is renamed or split is still counted.
    """
    import importlib
    import pkgutil

    from triton.runtime.jit import JITFunction

    import plugin.attention

    names = set()
    for found in pkgutil.iter_modules(plugin.attention.__path__, "plugin.attention."):
        for name, value in vars(importlib.import_module(found.name)).items():
            if isinstance(value, JITFunction) and not name.startswith("_"):
                names.add(value.__name__)
    return sorted(name for name in names if any(part in name for part in ("attend", "join", "merged")))


def _graphs(worker: Any, batch: int, query_len: int) -> dict[str, Any]:
    """The captured graphs that a step of `batch` requests with `query_len` tokens each replays."""
    runner = worker.model_runner
    managers = {"verify": (getattr(runner, "cudagraph_manager", None), query_len)}
    speculator = getattr(runner, "speculator", None)
    if speculator is not None:
        managers["draft"] = (speculator.query_cudagraph_manager, speculator.num_query_per_req)
    sampling = getattr(runner.cudagraph_manager, "sampling", None)
    if sampling is not None:  # a replay ends with the state of its requests
        sampling.stage_nobody()
    found = {}
    for name, (manager, length) in managers.items():
        if manager is None:
            continue
        chosen = manager.dispatch(batch, batch * length, length, 0, max_query_len=length)
        if chosen in manager.graphs:
            found[name] = manager.graphs[chosen]
    return found
