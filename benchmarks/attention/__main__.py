"""`python -m benchmarks.attention [--sweep] [--only NAME] [--out FILE]`: the merged attention timed on this GPU."""

import argparse
import itertools
import json
import platform
from dataclasses import asdict, replace
from pathlib import Path

import torch
import triton

from benchmarks.attention.figures import figures
from benchmarks.attention.flash_attention import flash_calls
from benchmarks.attention.norm_rope import measure_norm_rope
from benchmarks.attention.sweep import sweep
from benchmarks.attention.timing import LAUNCH_FLOOR_US, copy_bandwidth, graphs_us, require_gpu
from benchmarks.attention.workloads import WORKLOADS, chosen_launch, kernel_calls
from benchmarks.results import record, typed


def hardware() -> dict[str, str]:
    """What the numbers depend on."""
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
    }


def measure(bandwidth: float, names: str) -> list[dict[str, object]]:
    """One row a workload; times in microseconds, of the kernel, joined the other way and the peer's in turns."""
    rows: list[dict[str, object]] = []
    for workload in WORKLOADS:
        if names not in workload.name:
            continue
        batches = workload.copies()
        launch = chosen_launch(workload, batches[0])
        other = replace(launch, fused=not launch.fused)  # a fused join of very many splits is slow, and right
        other_calls = None if launch.splits == 1 else kernel_calls(workload, batches, other)
        peer_calls = None if workload.window is not None else flash_calls(workload, len(batches))
        calls = [kernel_calls(workload, batches, launch), other_calls, peer_calls]
        measured = iter(graphs_us([some for some in calls if some]))
        us, other_us, peer_us = (next(measured) if some else None for some in calls)
        assert us is not None
        floor_us = max(workload.kv_bytes / bandwidth * 1e6, LAUNCH_FLOOR_US)
        rows.append({
            "workload": workload.name,
            "us": round(us, 2),
            "splits": launch.splits,
            "slices": launch.slices,
            "fused": launch.fused,
            "us_joined_the_other_way": None if other_us is None else round(other_us, 2),
            "bandwidth_fraction": round(workload.kv_bytes / (us * 1e-6) / bandwidth, 3),
            "over_floor": round(us / floor_us, 3),
            "fa3_us": None if peer_us is None else round(peer_us, 2),
            "over_fa3": None if peer_us is None else round(us / peer_us, 3),
        })  # fmt: skip
    return rows


def print_rows(rows: list[dict[str, object]]) -> None:
    """The rows as an aligned table."""
    names = list(rows[0])
    cells = [names, *([str("-" if row[name] is None else row[name]) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))


def main() -> None:
    """Measure, print, and write the JSON where asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention", description=__doc__)
    parser.add_argument(
        "--sweep", action="store_true", help="time all launch shapes, not only the chosen ones"
    )
    parser.add_argument("--only", default="", help="workloads whose name holds this text")
    parser.add_argument("--out", type=Path, help="record the figures in this results file")
    parser.add_argument("--workers", type=int, default=16, help="processes that compile for the sweep")
    parser.add_argument(
        "--best", type=int, default=4, help="launch shapes of the sweep to print for each workload"
    )
    args = parser.parse_args()
    require_gpu()
    bandwidth = copy_bandwidth()
    result: dict[str, object] = {**hardware(), "copy_bytes_per_second": bandwidth}
    print(f"{result['gpu']}: copy {bandwidth / 1e12:.2f} TB/s")
    if args.sweep:
        trials = sweep(args.workers, args.only)
        result["sweep"] = [asdict(trial) for trial in trials]
        for _, group in itertools.groupby(trials, key=lambda trial: trial.workload):
            best = list(itertools.islice(group, args.best))
            print_rows([{"workload": t.workload, "us": round(t.us, 2), **asdict(t.launch)} for t in best])
    rows = measure(bandwidth, args.only)
    result["rows"] = rows
    print_rows(rows)
    if not args.only:
        fused = measure_norm_rope()
        result["norm_rope"] = fused
        print_rows(fused)
    found = figures(rows)
    for name, value in found.items():
        print(f"{name} = {value:.3f}")
    if args.out is not None:
        record(args.out, typed("benchmarks.attention"), found, result)
    print(json.dumps(result if not args.sweep else {**result, "sweep": f"{len(trials)} trials"}))


if __name__ == "__main__":
    main()
