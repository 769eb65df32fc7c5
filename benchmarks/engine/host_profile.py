"""The host's part in a decode step, with and without a draft: steps/s, the GPU's share, time by phase and by function.

    python -m benchmarks.engine.host_profile                    # a GPU, random weights in the published shapes
    python -m benchmarks.engine.host_profile --model demo --arms raw,dflash --batches 1,4      # a CPU

Each engine runs alone, inside the process that steps it, since another process cannot be profiled; `--multiprocess`
also counts its steps a second as it is served. Acceptance is vLLM's synthetic one, but for the demo, whose drafts guess
after random ids: there is none on a CPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.bench.command import positives
from benchmarks.engine.figures import K
from benchmarks.engine.host_report import Measured, headline, report
from benchmarks.engine.process import ArmProcess, needs_plugin
from benchmarks.engine.specs import specs
from benchmarks.results import measured_with, typed
from plugin.drafts.checkpoint import DEMO
from plugin.drafts.families import FAMILIES

ARMS = ("raw", *FAMILIES)
PROMPT_TOKENS = 64
MULTIPROCESS = "multiprocess"


def demo_specs(arms: Sequence[str], batches: Sequence[int]) -> dict[str, dict[str, Any]]:
    """SPEC by arm of the bundled demo: its weights and its tokenizer, nothing compiled."""
    vocabulary = json.loads((DEMO / "verifier" / "config.json").read_text())["decoder"]["vocab_size"]
    made = {}
    for arm in arms:
        engine: dict[str, Any] = {
            "model": str(DEMO / "verifier"),
            "dtype": "float32",
            "max_num_seqs": max(batches),
            "kv_cache_memory_bytes": 256 << 20,
            "enforce_eager": True,
        }
        if arm in FAMILIES:
            engine["speculative_config"] = {
                "model": str(DEMO / arm),
                "method": "dflash",
                "num_speculative_tokens": K,
            }
        made[arm] = {
            "prompt_tokens": PROMPT_TOKENS,
            "query_len": 1 + K if arm in FAMILIES else 1,
            "vocabulary": vocabulary,
            "detokenize": True,
            "engine": engine,
        }
    return made


def ask(name: str, spec: Mapping[str, Any], args: argparse.Namespace) -> dict[int, Measured]:
    """What an engine of its own found, by batch; without those that failed, of which it is told why."""
    command = [sys.executable, "-m", "benchmarks.engine.host_arm", json.dumps(spec)]
    log = args.logs / f"host-{name}.log"
    arm = ArmProcess(name, {}, log.open("w"), args.timeout, command)
    found = {}
    try:
        print(f"{name}: ready after {arm.answer()['ready']:.0f} s", flush=True)
        for batch in args.batches:
            found[batch] = Measured.read(arm.ask(measure=batch, tokens=args.tokens, rounds=args.rounds))
    except RuntimeError as error:
        print(error, file=sys.stderr, flush=True)
    finally:
        arm.stop()
    return found


def arms(text: str) -> list[str]:
    """`raw,dflash`. Raises ArgumentTypeError for an arm that is none."""
    found = text.split(",")
    if unknown := [arm for arm in found if arm not in ARMS]:
        raise argparse.ArgumentTypeError(f"no arm is called {', '.join(unknown)}: {', '.join(ARMS)}")
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine.host_profile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--arms", type=arms, default=list(ARMS))
    parser.add_argument("--batches", type=positives, default=(1, 4, 32))
    parser.add_argument("--tokens", type=int, default=128, help="new tokens of a request")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds, after those that warm up")
    parser.add_argument("--model", choices=["demo", "published"], default="published")
    parser.add_argument("--multiprocess", action="store_true", help="a second engine an arm, as it is served")
    parser.add_argument("--top", type=int, default=40, help="functions of a table")
    parser.add_argument(
        "--timeout", type=float, default=400, help="seconds that an engine may take for an answer"
    )
    parser.add_argument("--out", type=Path, help="JSON file of all that was found")
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()), help="folder of the logs")
    args = parser.parse_args()
    needs_plugin()
    args.logs.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[int, Measured]] = {}
    failed = []
    with tempfile.TemporaryDirectory() as root:
        if args.model == "demo":
            made = demo_specs(args.arms, args.batches)
        else:
            made = specs(
                Path(root), args.arms, args.batches, prompt_tokens=PROMPT_TOKENS, new_tokens=args.tokens
            )
        for name, spec in made.items():
            for multiprocess in (False, True) if args.multiprocess else (False,):
                # Without a tokenizer there is nothing to detokenise.
                spec = {"detokenize": False, **spec, MULTIPROCESS: multiprocess}
                arm = f"{name}, {MULTIPROCESS}" if multiprocess else name
                found[arm] = ask(arm.replace(", ", "-"), spec, args)
                for batch, each in found[arm].items():
                    raw = found.get("raw", {}).get(batch) if name != "raw" else None
                    print(report(arm, batch, each, raw, args.top), flush=True)
                if len(found[arm]) < len(args.batches):
                    failed.append(arm)
    print("\n".join(headline(arm, batch, each) for arm, by in found.items() for batch, each in by.items()))
    if args.out:
        run = {"command": typed("benchmarks.engine.host_profile"), **measured_with()}
        every = {arm: {batch: asdict(each) for batch, each in by.items()} for arm, by in found.items()}
        args.out.write_text(json.dumps({**run, "arms": every}, indent=1) + "\n")
    if failed:
        sys.exit(f"not measured as a whole: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
