"""Long and repeated prompts: time to first token with and without held states, a prompt at the model's limit, and what
the neighbours of long prompts feel.

    python -m benchmarks.engine.long_prompts --out benchmarks/results/h200.json
    python -m benchmarks.engine.long_prompts --model plugin/demo/verifier --lengths 512 --long 512    # on a CPU

Random weights in the published shape unless a model is given. The engine runs in a process of its own and is read
through its asynchronous front end, as the gateway reads it; nothing is compiled, so that it starts within a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.results import record, typed

STREAMS = 4
STREAM_TOKENS = 4000
EVERY_S = 1.0
"""From one long prompt to the next."""
FIRST_ID = 300
"""Above the special tokens of both vocabularies; prompts are random ids from here to twice that."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """Seconds between the chunks of running streams."""

    median: float
    worst: float
    prompts: int

    @classmethod
    def of(cls, arrivals: Sequence[Sequence[float]], prompts: int) -> Gaps:
        """From each stream's times of arrival."""
        gaps = [b - a for times in arrivals for a, b in itertools.pairwise(times)]
        return cls(statistics.median(gaps), max(gaps), prompts)


class Engine:
    """A started engine; `serial` names its requests."""

    def __init__(self, llm: Any, seed: int) -> None:
        self._llm, self._random, self._serial = llm, random.Random(seed), itertools.count()

    def prompt(self, length: int) -> list[int]:
        """Ids that no request had."""
        return [2, *(self._random.randrange(FIRST_ID, 2 * FIRST_ID) for _ in range(length - 1))]

    async def chunks(self, prompt: list[int], tokens: int) -> AsyncIterator[float]:
        """When each chunk of an answer came."""
        from vllm import SamplingParams
        from vllm.renderers.inputs.preprocess import parse_model_prompt
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA
        )
        renderer = self._llm.renderer
        parsed = parse_model_prompt(self._llm.model_config, {"prompt_token_ids": prompt})
        (rendered,) = renderer.render_cmpl([parsed], renderer.default_cmpl_tok_params)
        async for _ in self._llm.generate(rendered, params, f"long-{next(self._serial)}"):
            yield time.perf_counter()

    async def first_token(self, prompt: list[int]) -> float:
        """Seconds to the first token of an answer of one."""
        began = time.perf_counter()
        async for when in self.chunks(prompt, 1):
            first = when
        return first - began

    async def peak_bytes(self) -> int:
        """Most memory that the worker's tensors had since this was last asked; 0 without a GPU."""
        (found,) = await self._llm.collective_rpc(_peak)
        return int(found)


def _peak(worker: Any) -> int:
    import torch

    if not torch.cuda.is_available():
        return 0
    found = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return int(found)


async def neighbours(engine: Engine, long: int, seconds: float, every: float | None) -> Gaps:
    """Four streams for a while, with a new prompt of `long` tokens every so many seconds, or without any."""
    arrivals: list[list[float]] = [[] for _ in range(STREAMS)]
    sent: list[asyncio.Task[float]] = []

    async def stream(times: list[float]) -> None:
        chunks = engine.chunks(engine.prompt(32), STREAM_TOKENS)
        async for when in chunks:
            times.append(when)  # noqa: PERF401  another task reads them meanwhile

    prompts = [engine.prompt(long) for _ in range(int(seconds / every))] if every else []
    streams = [asyncio.create_task(stream(times)) for times in arrivals]
    await asyncio.sleep(EVERY_S)  # their own admission
    for times in arrivals:
        times.clear()
    for prompt in prompts:
        sent.append(asyncio.create_task(engine.first_token(prompt)))
        await asyncio.sleep(every or 0)
    if not prompts:
        await asyncio.sleep(seconds)
    measured = [list(times) for times in arrivals]
    await asyncio.gather(*sent)
    for task in streams:
        task.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    return Gaps.of(measured, len(prompts))


async def measure(engine: Engine, args: argparse.Namespace) -> tuple[dict[str, float], dict[str, Any]]:
    """All figures, and what they were made from."""
    figures: dict[str, float] = {}
    details: dict[str, Any] = {"ttft": {}, "limit": {}, "gaps": {}}
    await engine.first_token(engine.prompt(64))
    for length in args.lengths:
        miss, hit = [], []
        for _ in range(args.rounds):
            prompt = engine.prompt(length)
            miss.append(await engine.first_token(prompt))
            hit.append(await engine.first_token(prompt))
        # The first is a warm-up: kernels are chosen for the length.
        miss, hit = miss[1:] or miss, hit[1:] or hit
        details["ttft"][length] = {"miss": miss, "hit": hit}
        figures[f"ttft_hit_over_miss_{length}"] = statistics.median(hit) / statistics.median(miss)
        print(f"{length} tokens: miss {statistics.median(miss):.4f} s, hit {statistics.median(hit):.4f} s")
    before = await engine.peak_bytes()
    seconds = await engine.first_token(engine.prompt(args.limit))
    peak = await engine.peak_bytes()
    details["limit"] = {
        "tokens": args.limit,
        "seconds": seconds,
        "peak_bytes": peak,
        "peak_bytes_before": before,
    }
    figures["limit_prompt_s"] = seconds
    print(f"{args.limit} tokens: {seconds:.3f} s, peak {peak / 1e9:.2f} GB", flush=True)
    for name, every in (("alone", None), ("beside_long_prompts", EVERY_S)):
        gaps = await neighbours(engine, args.long, args.seconds, every)
        details["gaps"][name] = asdict(gaps)
        figures[f"worst_gap_over_median_{name}"] = gaps.worst / gaps.median
        print(
            f"{name}: median {1e3 * gaps.median:.2f} ms, worst {1e3 * gaps.worst:.2f} ms, {gaps.prompts} prompts of "
            f"{args.long}",
            flush=True,
        )
    return figures, details


def engine_arguments(args: argparse.Namespace, model: Path) -> dict[str, Any]:
    """vLLM's, for one engine whose prompts may have the model's own limit."""
    positions = max(args.limit, args.long, *args.lengths)
    decoder = min(positions, STREAM_TOKENS + 96)
    published = args.model is None
    found: dict[str, Any] = {
        "model": str(model),
        "skip_tokenizer_init": published,
        "load_format": "dummy" if published else "auto",
        "dtype": "bfloat16" if published else "float32",
        "max_model_len": decoder,
        "max_num_seqs": 2 * STREAMS,
        "max_num_batched_tokens": max(positions, 2048),
        "hf_overrides": {"max_source_positions": positions},
        "kv_cache_memory_bytes": args.kv_bytes,
        "enforce_eager": args.enforce_eager,
        "ec_manager_config": {
            "encoder_cache_manager_cls": "plugin.verifier.encoder_cache.PromptCacheManager",
            "manager_config": {"cache_bytes": 1 << 30, "busy_step_tokens": args.step_tokens},
        },
    }
    if not args.enforce_eager:
        found["compilation_config"] = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
    return found


async def run(args: argparse.Namespace, model: Path) -> tuple[dict[str, float], dict[str, Any]]:
    """Starts the engine, measures, ends it."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_arguments(args, model)))
    try:
        return await measure(Engine(llm, args.seed), args)
    finally:
        llm.shutdown()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--out", type=Path, help="results file; figures are merged into it")
    parser.add_argument(
        "--model", type=Path, help="verifier; default: the published shape with random weights"
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 8192, 32_000], help="prompt tokens")
    parser.add_argument("--limit", type=int, help="default: the model's max_position_embeddings")
    parser.add_argument("--long", type=int, default=8192, help="tokens of the streams' neighbours")
    parser.add_argument(
        "--step-tokens", type=int, default=512, help="encoder tokens of a step beside streams"
    )
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=8, help="of each kind of neighbourhood")
    parser.add_argument("--kv-bytes", type=int, default=8 << 30)
    parser.add_argument("--enforce-eager", action="store_true", help="no graphs either; needed on a CPU")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # the question for memory is a function
    with tempfile.TemporaryDirectory() as folder:
        from benchmarks.shapes import write_verifier

        model = args.model or write_verifier(Path(folder))
        args.limit = args.limit or _positions(model)
        figures, details = asyncio.run(run(args, model))
    if args.out:
        record(args.out, typed("benchmarks.engine.long_prompts"), figures, details)
    return 0


def _positions(model: Path) -> int:
    from transformers import AutoConfig

    return int(AutoConfig.from_pretrained(model).encoder.text_config.max_position_embeddings)


if __name__ == "__main__":
    raise SystemExit(main())
