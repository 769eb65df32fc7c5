"""`python -m benchmarks.report`: writes BENCHMARKS.md's section of the GPU anew from benchmarks/results/h200.json.

The section stands between two comments of its own and holds nothing that the file does not: each run with the machine,
the versions, the commit and the command, and its figures.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from benchmarks.results import H200, ROOT, read

DOCUMENT = ROOT / "BENCHMARKS.md"
BEGIN, END = "<!-- gpu: `python -m benchmarks.report` writes what follows -->", "<!-- /gpu -->"
NOTHING = (
    "Nothing is recorded yet: `make gpu-bench OUT=benchmarks/results/h200.json` measures, and"
    " `python -m benchmarks.report` writes this section."
)

MEANINGS = {
    "raw_over_transformers_*": "output tokens/s without a draft over transformers' `generate`",
    "raw_over_decoder_only_*": "output tokens/s without a draft over those of its decoder-only peer in vLLM",
    "ttft_over_decoder_only_*": "time of one token after the prompt over that of the decoder-only peer",
    "raw_graph_over_floor_*": "GPU time of a decode graph, head included, over its weights' bytes / copy bandwidth",
    "steps_per_second_*": "engine steps/s after the first, host included",
    "gpu_share_*": "share of a step in which the GPU works",
    "speedup_*": "output tokens/s with the draft over none, at the acceptance length of the run",
    "draft_over_verify_*": "GPU time of the draft's step over the verification step's, head and choice too, batch 1",
    "attention_us_*": "merged attention of a layer inside the engine's graph, microseconds",
    "kernel_bandwidth_fraction": "bytes of K/V a second over the copy bandwidth, decode, long contexts",
    "kernel_over_fa3*": "time of the merged attention over FlashAttention 3's on the same keys",
    "kernel_bs1_long_us_over_floor*": "one long request: time over the larger of bytes / bandwidth and 5 us",
    "first_request_over_median": "the slowest first request of a kind after /ready over the median request",
    "ready_s_*": "seconds from start to /ready",
    "gateway_over_vllm_serve_rps": "requests/s of the gateway over plain `vllm serve`",
    "gateway_over_vllm_serve_ttft": "time to first token of the gateway over plain `vllm serve`",
    "ttft_hit_over_miss_*": "first token of a prompt whose encoder states are held over a new one's, by its tokens",
    "limit_prompt_s": "first token of a prompt as long as the model takes, seconds",
    "worst_gap_over_median_alone": "longest gap between tokens over the median, four streams, least of the rounds",
    "worst_gap_over_median_beside_short_prompts": "the same beside a new prompt of 64 tokens a second",
    "worst_gap_over_median_beside_held_prompts": "the same beside one of 8 192 whose encoder states are held",
    "worst_gap_over_median_beside_long_prompts": "the same beside a new prompt of 8 192 tokens a second",
    "estimate_over_measured_*": "the server's own estimate over the speed-up measured beside it, by load and batch",
    "auto_over_best_*": "output tokens/s of K = auto over those of the best fixed K, by load and batch",
    "dp2_over_dp1_rps": "requests/s on two GPUs over one",
    "training_*_tokens_per_second": "decoder tokens/s that the draft's training takes",
    "training_*_samples_per_second": "samples/s, of 255 tokens to prompts of 256 unless the command says",
    "training_*_flop_utilisation": "floating-point operations/s of its step over a large matrix product's",
    "training_*_extraction_share": "share of the verifier's pass in the time of its step",
}
"""Names of figures, `*` for any characters -> what they mean."""


def section(results: Mapping[str, Any]) -> str:
    """The section's Markdown, without its comments."""
    return "\n\n".join(_runs(results)) or NOTHING


def written(document: str, results: Mapping[str, Any]) -> str:
    """The document with the section in place of the one it has.

    Raises:
        ValueError: it has none.
    """
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"there is no {BEGIN} with {END} behind it")
    return f"{before}{BEGIN}\n\n{section(results)}\n\n{END}{after}"


def meaning(name: str) -> str:
    """What a figure means; a dash when nobody wrote it down."""
    return next((words for pattern, words in MEANINGS.items() if fnmatchcase(name, pattern)), "–")


def _runs(results: Mapping[str, Any]) -> Iterator[str]:
    for command, run in results["runs"].items():
        machine = run["hardware"]
        where = "; ".join(machine["gpus"]) or machine["cpu"]
        versions = ", ".join(f"{name} {number}" for name, number in run["versions"].items())
        commit = f"commit {run['commit']}" if run["commit"] else "commit unknown"
        yield f"`{command}`, {run['date'][:10]}, {commit}. {where}, {machine['cores']} cores; {versions}."
        rows = [f"| `{name}` | {results['figures'][name]:.4g} | {meaning(name)} |" for name in run["figures"]]
        yield "\n".join(["| figure | measured | means |", "|---|---|---|", *rows])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--results", type=Path, default=H200, metavar="FILE", help="default %(default)s")
    parser.add_argument("--document", type=Path, default=DOCUMENT, metavar="FILE", help="default %(default)s")
    arguments = parser.parse_args()
    document = arguments.document.read_text()
    arguments.document.write_text(written(document, read(arguments.results)))


if __name__ == "__main__":
    main()
