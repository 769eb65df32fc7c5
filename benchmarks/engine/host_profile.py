"""The host's part in a decode step, with and without a draft: steps/s, the GPU's share, time by phase and by function.

    python -m benchmarks.engine.host_profile                    # a GPU, random weights in the published shapes
    python -m benchmarks.engine.host_profile --model demo --arms raw,dflash --batches 1,4      # a CPU
    python -m benchmarks.engine.host_profile --arms raw --admit 1 --beside 4    # the steps that admit requests

Each engine runs alone, inside the process that steps it, since another process cannot be profiled; `--multiprocess`
also counts its steps a second as it is served. With `--admit` requests run, others of one token join them now and then,
and the steps that admit have tables of their own. Acceptance is vLLM's synthetic one, but for the demo, whose drafts
guess after random ids: there is none on a CPU.
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
from benchmarks.engine import joins_report
from benchmarks.engine.figures import K
from benchmarks.engine.host_joins import LEAST_EVERY, Joins
from benchmarks.engine.host_report import Measured, headline, report
from benchmarks.engine.process import ArmProcess, needs_plugin
from benchmarks.engine.specs import long_prompts, specs
from benchmarks.results import measured_with, typed
from plugin.drafts.checkpoint import DEMO
from plugin.drafts.families import FAMILIES

ARMS = ("raw", *FAMILIES)
PROMPT_TOKENS = 64
MAX_PROMPT_TOKENS = 1024
"""What the arms' engines take without being told."""
STEP_TOKENS = 128
"""Of a longer prompt, encoder tokens of a step: the gateway's own number on a GPU."""
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


def ask(
    name: str, spec: Mapping[str, Any], args: argparse.Namespace, commands: Mapping[int, dict[str, int]]
) -> dict[int, Any]:
    """What an engine of its own answers, by batch; without what failed, of which it is told why."""
    command = [sys.executable, "-m", "benchmarks.engine.host_arm", json.dumps(spec)]
    log = args.logs / f"host-{name}.log"
    arm = ArmProcess(name, {}, log.open("w"), args.timeout, command)
    found = {}
    try:
        print(f"{name}: ready after {arm.answer()['ready']:.0f} s", flush=True)
        for batch, each in commands.items():
            found[batch] = arm.ask(**each, rounds=args.rounds)
    except RuntimeError as error:
        print(error, file=sys.stderr, flush=True)
    finally:
        arm.stop()
    return found


def joins(args: argparse.Namespace, made: Mapping[str, Any]) -> dict[str, dict[int, Joins]]:
    """What is found of requests that join, by arm; it is told as it is found."""
    command = {"join": args.admit, "beside": args.beside, "every": args.every, "tokens": args.tokens}
    found = {}
    for name, spec in made.items():
        spec = {"detokenize": False, **spec, MULTIPROCESS: False, "joining_tokens": args.prompt_tokens}
        answers = ask(name, spec, args, {args.admit: command})
        found[name] = {batch: Joins.read(answer) for batch, answer in answers.items()}
        for each in found[name].values():
            print(joins_report.report(name, each, args.top), flush=True)
    print("\n".join(joins_report.head(arm, each) for arm, by in found.items() for each in by.values()))
    return found


def steps(args: argparse.Namespace, made: Mapping[str, Any]) -> dict[str, dict[int, Measured]]:
    """What is found of decode steps, by arm; it is told as it is found."""
    commands = {batch: {"measure": batch, "tokens": args.tokens} for batch in args.batches}
    found: dict[str, dict[int, Measured]] = {}
    for name, spec in made.items():
        for multiprocess in (False, True) if args.multiprocess else (False,):
            # Without a tokenizer there is nothing to detokenise.
            spec = {"detokenize": False, **spec, MULTIPROCESS: multiprocess}
            arm = f"{name}, {MULTIPROCESS}" if multiprocess else name
            answers = ask(arm.replace(", ", "-"), spec, args, commands)
            found[arm] = {batch: Measured.read(answer) for batch, answer in answers.items()}
            for batch, each in found[arm].items():
                raw = found.get("raw", {}).get(batch) if name != "raw" else None
                print(report(arm, batch, each, raw, args.top), flush=True)
    print("\n".join(headline(arm, batch, each) for arm, by in found.items() for batch, each in by.items()))
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
    parser.add_argument("--admit", type=int, default=0, help="requests that join at once; 0: none")
    parser.add_argument("--beside", type=int, default=4, help="requests that those join")
    parser.add_argument("--every", type=int, default=8, help="steps from one admission to the next")
    parser.add_argument("--prompt-tokens", type=int, default=PROMPT_TOKENS, help="of those that join")
    parser.add_argument(
        "--tokens",
        type=int,
        help="new tokens of a request (128; where others join it 512, of which those have one)",
    )
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
    if args.admit and args.every < LEAST_EVERY:
        parser.error(
            f"--every {args.every}: less than {LEAST_EVERY} steps apart no step is without an admission"
        )
    args.tokens = args.tokens or (512 if args.admit else 128)
    batches = (args.beside, args.beside + args.admit) if args.admit else args.batches
    with tempfile.TemporaryDirectory() as root:
        if args.model == "demo":
            made = demo_specs(args.arms, batches)
        else:
            made = specs(
                Path(root),
                args.arms,
                batches,
                prompt_tokens=PROMPT_TOKENS,
                new_tokens=args.tokens,
                engine=long_prompts(args.prompt_tokens, STEP_TOKENS)
                if args.prompt_tokens > MAX_PROMPT_TOKENS
                else None,
            )
        found: Mapping[str, Mapping[int, Any]] = joins(args, made) if args.admit else steps(args, made)
    if args.out:
        run = {"command": typed("benchmarks.engine.host_profile"), **measured_with()}
        every = {arm: {batch: asdict(each) for batch, each in by.items()} for arm, by in found.items()}
        args.out.write_text(json.dumps({**run, "arms": every}, indent=1) + "\n")
    wanted = 1 if args.admit else len(args.batches)
    if failed := [arm for arm, by in found.items() if len(by) < wanted]:
        sys.exit(f"not measured as a whole: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
