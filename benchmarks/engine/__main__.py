"""The engine against its peers on one GPU: all alive at once, run in turns, medians of rounds after warm-up.

    python -m benchmarks.engine --out benchmarks/results/h200.json

Random weights in the published shapes; the draft's acceptance is vLLM's synthetic one, so that a ratio says what a
draft of that acceptance would give. The engines start side by side, which takes the two to three minutes of one.
`--smoke` does the same in small, without compiling, on any machine: it measures nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.engine.critical_path import path_table
from benchmarks.engine.figures import FIRST, SOME, Figure, as_json, graph_figures, host_figures, time_figures
from benchmarks.engine.process import Arm, ArmProcess, needs_plugin
from benchmarks.engine.specs import ARMS, specs
from benchmarks.engine.turns import SLOW, Seconds, Work, measure
from benchmarks.results import record, typed
from benchmarks.shapes import PUBLISHED, SMOKE, Shape
from plugin.drafts.families import FAMILIES

SLOW_BATCHES = (1, 4)
ANSWER_S = 120.0
"""Seconds that an arm may take for one answer once it is ready."""
NO_COMPILING: dict[str, Any] = {
    "kv_cache_memory_bytes": 256 << 20,
    "max_num_batched_tokens": 1024,
    "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
}


def run_all(
    arms: MutableMapping[str, Arm], batches: Sequence[int], rounds: int, new_tokens: int, shape: Shape
) -> tuple[dict[str, Figure], dict[str, Any]]:
    """All figures and what they were made from. Arms that give no answer are taken out of `arms`."""
    works = [Work(batch, tokens) for batch in batches for tokens in (FIRST, SOME, new_tokens)]
    # Three times the rounds for what is compared: the host's speed, and with it a run's, varies within seconds.
    by_tokens = {FIRST: 3 * rounds, SOME: rounds, new_tokens: 3 * rounds}
    slow = [Work(batch, new_tokens) for batch in SLOW_BATCHES]
    seconds = measure(arms, works, by_tokens, slow)
    print(table(seconds), flush=True)

    def asked(name: str, **command: Any) -> dict[str, Any]:
        """The answer, or nothing: the figures that need it are then missing."""
        try:
            return arms[name].ask(**command)
        except RuntimeError as error:
            print(error, file=sys.stderr, flush=True)
            return {}

    engines = [name for name in arms if name != SLOW]
    rate = asked(engines[0], bandwidth=1).get("bytes_per_second", 0.0) if engines else 0.0
    graphs = {name: {batch: asked(name, graphs=batch) for batch in batches} for name in engines}
    attention = {name: asked(name, attention=1) for name in engines if name in FAMILIES}
    paths = {name: asked(name, path=1) for name in engines}
    for name, steps in paths.items():
        for step, rows in steps.items():
            print(path_table(f"{name}, {step}, batch 1", rows), flush=True)
    kernels = {
        (name, batch): {
            tokens: asked(name, busy=batch, tokens=tokens).get("kernels", {}) for tokens in (FIRST, SOME)
        }
        for name in engines
        for batch in batches
    }
    busy = {at: {n: sum(us.values()) / 1e6 for n, us in runs.items()} for at, runs in kernels.items()}
    first = next((by for by in attention.values() if by), {})
    found = {
        **time_figures(seconds, new_tokens),
        **graph_figures(
            {name: by_batch.get(1, {}) for name, by_batch in graphs.items()},
            [sum(loop) for loop in zip(*first.values(), strict=True)],
            shape.decode_bytes() / rate if rate else None,
        ),
        **host_figures(seconds, {at: gpu for at, gpu in busy.items() if gpu[SOME]}, new_tokens),
    }
    details = {
        "figures": as_json(found),
        "seconds": {f"bs{w.batch}, {w.tokens} tokens": by_arm for w, by_arm in seconds.items()},
        "graph_seconds": graphs,
        "attention_us_by_kernel": attention,
        "graph_path": paths,
        "copy_bytes_per_second": rate,
        "decode_bytes": shape.decode_bytes(),
        "gpu_seconds": {f"{name} bs{batch}": gpu for (name, batch), gpu in busy.items()},
        "kernels_us": {
            f"{name} bs{batch}": {str(n): longest(us) for n, us in runs.items()}
            for (name, batch), runs in kernels.items()
        },
    }
    return found, details


def longest(us: Mapping[str, float], count: int = 25) -> dict[str, float]:
    """The kernels that take most, by microseconds."""
    return dict(sorted(us.items(), key=lambda item: -item[1])[:count])


def table(seconds: Seconds) -> str:
    """Milliseconds of the runs, for reading."""
    lines = ["median ms (least ... most) of a run"]
    for work, by_arm in seconds.items():
        for name, each in by_arm.items():
            low, middle, high = (1e3 * f(each) for f in (min, statistics.median, max))
            lines.append(
                f"batch {work.batch:<3} {work.tokens:>4} tokens {name:>13} {middle:9.2f}  ({low:.2f} ... {high:.2f})"
            )
    return "\n".join(lines)


def start(specs_by_arm: Mapping[str, dict[str, Any]], logs: Path, timeout_s: float) -> dict[str, ArmProcess]:
    """The processes of all arms; those that become ready are returned, of the others it is told why not."""
    logs.mkdir(parents=True, exist_ok=True)
    begun = {
        name: ArmProcess(name, spec, (logs / f"arm-{name}.log").open("w"), timeout_s)
        for name, spec in specs_by_arm.items()
    }
    ready = {}
    for name, arm in begun.items():
        try:
            print(f"{name}: ready after {arm.answer()['ready']:.0f} s", flush=True)
            ready[name] = arm
            arm.timeout_s = ANSWER_S
        except RuntimeError as error:
            print(error, file=sys.stderr, flush=True)
            arm.stop()
    return ready


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--batches", default="1,4,32")
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds, after those that warm up")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--smoke", action="store_true", help="small shapes, nothing compiled")
    parser.add_argument("--timeout", type=float, default=400, help="seconds that an arm may take to start")
    parser.add_argument("--out", type=Path, help="record the figures in this results file")
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()), help="folder of the logs")
    args = parser.parse_args()
    needs_plugin()
    batches = [int(batch) for batch in args.batches.split(",")]
    asked = args.arms.split(",")
    shape = SMOKE if args.smoke else PUBLISHED
    with tempfile.TemporaryDirectory() as root:
        by_arm = specs(
            Path(root),
            asked,
            batches,
            prompt_tokens=args.prompt_tokens,
            new_tokens=args.new_tokens,
            shape=shape,
            engine=NO_COMPILING if args.smoke else None,
        )
        processes = start(by_arm, args.logs, args.timeout)
        arms: dict[str, Arm] = dict(processes)
        try:
            found, details = run_all(arms, batches, args.rounds, args.new_tokens, shape)
        finally:
            for process in processes.values():
                process.stop()
    (args.logs / "engine-details.json").write_text(json.dumps(details))
    print("graph ms:", json.dumps(milliseconds(details["graph_seconds"])))
    for name, figure in found.items():
        print(f"{name} = {figure.value:.3f}  ({figure.low:.3f} ... {figure.high:.3f})")
    if missing := [name for name in asked if name not in arms]:
        sys.exit(f"nothing is recorded: {', '.join(missing)} gave no answer")
    if args.out:
        values = {name: figure.value for name, figure in found.items()}
        record(args.out, typed("benchmarks.engine"), values, details)


def milliseconds(graphs: Mapping[str, Mapping[int, Mapping[str, Sequence[float]]]]) -> dict[str, Any]:
    """Median milliseconds of the replays, by arm, batch and step."""
    return {
        name: {
            b: {k: round(1e3 * statistics.median(v), 4) for k, v in by.items()} for b, by in by_batch.items()
        }
        for name, by_batch in graphs.items()
    }


if __name__ == "__main__":
    main()
