"""Engine throughput against its peers, all alive at once and run in turns: medians of interleaved runs.

    python -m benchmarks.engine --out app/bench/results/h200.json

Random weights in the published shapes; the draft's acceptance is vLLM's synthetic one, so that a ratio says what a
draft of that acceptance would give. Names of the figures are those of the table in BENCHMARKS.md.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, TextIO

from benchmarks.engine.shapes import VOCABULARY, write_decoder_only, write_draft, write_verifier
from plugin.drafts.families import FAMILIES

K = 7
ACCEPTANCE_LENGTH = 4.0


class Arm:
    """A benchmark process (`benchmarks.engine.arm`) and the log it writes to."""

    def __init__(self, name: str, spec: dict[str, Any], log: TextIO) -> None:
        self.name = name
        command = [sys.executable, "-m", "benchmarks.engine.arm", json.dumps(spec)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1
        )
        self.log = log

    def answer(self) -> dict[str, Any]:
        """The next answer; other output goes to the log. RuntimeError when the process ends without one."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("@"):
                return dict(json.loads(line[1:]))
            self.log.write(line)
        raise RuntimeError(f"the arm {self.name} ended without an answer: see {self.log.name}")

    def ask(self, **command: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def stop(self) -> None:
        if self.process.poll() is None and self.process.stdin is not None:
            self.process.stdin.close()
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()


def specs(
    root: Path, arms: list[str], batches: list[int], args: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """What each arm is: `transformers`, `decoder_only`, `raw`, or a family."""
    verifier = write_verifier(root / "verifier")
    engine = {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "max_model_len": 1024,
        "max_num_seqs": max(batches),
        "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": 0.95,
        "kv_cache_memory_bytes": 4 << 30,
        "enforce_eager": args.eager,
        "compilation_config": {"cudagraph_capture_sizes": capture_sizes(batches)},
    }
    made: dict[str, dict[str, Any]] = {}
    for arm in arms:
        spec: dict[str, Any] = {
            "kind": "transformers" if arm == "transformers" else "vllm",
            "prompt_tokens": args.prompt_tokens,
            "new_tokens": args.new_tokens,
            "vocabulary": VOCABULARY,
            "engine": engine | {"model": str(verifier)},
        }
        if arm == "decoder_only":
            spec["engine"] = engine | {
                "model": str(write_decoder_only(root / arm)),
                "enable_prefix_caching": False,
            }
        elif arm in FAMILIES:
            draft = write_draft(root / arm, arm, verifier)
            spec["engine"]["speculative_config"] = {
                "model": str(draft),
                "method": "dflash",
                "num_speculative_tokens": K,
                "rejection_sample_method": "synthetic",
                "synthetic_acceptance_length": ACCEPTANCE_LENGTH,
            }
            spec["engine"]["compilation_config"] = {
                "cudagraph_capture_sizes": capture_sizes([b * (1 + K) for b in batches])
            }
        made[arm] = spec
    return made


def capture_sizes(tokens: list[int]) -> list[int]:
    """Graph sizes for the measured batches and nothing else: start-up counts, too."""
    return sorted(set(tokens))


def measure(arms: dict[str, Arm], batches: list[int], rounds: int) -> dict[str, dict[int, list[float]]]:
    """Output tokens a second of every arm and batch size, one value a round, arms in turns within a round."""
    rates: dict[str, dict[int, list[float]]] = {name: {b: [] for b in batches} for name in arms}
    for batch in batches:
        for round_ in range(rounds + 1):
            for name, arm in arms.items():
                if name == "transformers" and batch > 4:
                    continue
                got = arm.ask(run=batch)
                if round_:  # the first round warms up
                    rates[name][batch].append(got["tokens"] / got["seconds"])
    return rates


def figures(
    rates: dict[str, dict[int, list[float]]], graphs: dict[str, dict[str, float]]
) -> dict[str, float]:
    """The ratios by name."""
    median = {(n, b): statistics.median(v) for n, by in rates.items() for b, v in by.items() if v}
    found: dict[str, float] = {}

    def ratio(name: str, above: tuple[str, int], below: tuple[str, int]) -> None:
        if above in median and below in median:
            found[name] = median[above] / median[below]

    for batch in (1, 4, 32):
        ratio(f"raw_over_transformers_bs{batch}", ("raw", batch), ("transformers", batch))
        ratio(f"raw_over_decoder_only_bs{batch}", ("raw", batch), ("decoder_only", batch))
        for family in FAMILIES:
            ratio(f"speedup_{family}_k{K}_bs{batch}", (family, batch), ("raw", batch))
    for family in FAMILIES:
        if {"draft", "verify"} <= graphs.get(family, {}).keys():
            found[f"draft_over_verify_{family}"] = graphs[family]["draft"] / graphs[family]["verify"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--arms", default=",".join(("transformers", "decoder_only", "raw", *FAMILIES)))
    parser.add_argument("--batches", default="1,4,32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--eager", action="store_true", help="no torch.compile and no CUDA graphs")
    parser.add_argument("--out", type=Path, help="merge the figures into this JSON file")
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()))
    args = parser.parse_args()
    batches = [int(b) for b in args.batches.split(",")]
    arms: dict[str, Arm] = {}
    graphs: dict[str, dict[str, float]] = {}
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as root:
        try:
            for name, spec in specs(Path(root), args.arms.split(","), batches, args).items():
                arms[name] = Arm(name, spec, (args.logs / f"arm-{name}.log").open("w"))
            for name, arm in list(arms.items()):
                try:
                    print(f"{name}: ready after {arm.answer()['ready']:.0f} s", flush=True)
                except RuntimeError as error:
                    print(error, flush=True)
                    failed.append(name)
                    del arms[name]
            rates = measure(arms, batches, args.rounds)
            if not args.eager:
                graphs = {n: arms[n].ask(graphs=1) for n in FAMILIES if n in arms}
        finally:
            for arm in arms.values():
                arm.stop()
    for name, by_batch in rates.items():
        for batch, values in by_batch.items():
            if values:
                low, mid, high = min(values), statistics.median(values), max(values)
                print(f"{name:>14} bs{batch:<3} {mid:9.1f} tok/s  ({low:.1f} ... {high:.1f})")
    found = figures(rates, graphs)
    for name, value in found.items():
        print(f"{name} = {value:.3f}")
    print("graphs:", json.dumps(graphs))
    if failed:
        sys.exit(f"nothing is recorded: {', '.join(failed)} did not start")
    if args.out:
        record(args.out, found, rates, graphs)


def record(path: Path, found: dict[str, float], rates: dict[str, Any], graphs: dict[str, Any]) -> None:
    """Merge into the results file, with what was measured on what."""
    from importlib.metadata import version

    import torch

    results = json.loads(path.read_text()) if path.exists() else {}
    results |= {
        "hardware": torch.cuda.get_device_name(),
        "versions": {name: version(name) for name in ("vllm", "torch", "triton", "transformers")},
    }
    results.setdefault("commands", {})["engine"] = "python -m benchmarks.engine " + " ".join(sys.argv[1:])
    # This run's figures replace all of the last one's; those that other commands measure stay.
    others = ("kernel_", "training_")
    kept = {name: value for name, value in results.get("figures", {}).items() if name.startswith(others)}
    results["figures"] = kept | found
    results["engine"] = {"output_tokens_per_second": rates, "graph_seconds_bs1": graphs}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
