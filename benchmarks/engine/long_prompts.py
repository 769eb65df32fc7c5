"""Long and repeated prompts: time to first token with and without held states, a prompt at the model's limit, and what
the neighbours of long prompts feel.

    python -m benchmarks.engine.long_prompts --out benchmarks/results/h200.json
    python -m benchmarks.engine.long_prompts --only-gaps --step-tokens 128 64 256 512     # several bounds, in turns
    python -m benchmarks.engine.long_prompts --model plugin/demo/verifier --lengths 512 --long 512 \\
        --step-tokens 32 --kv-bytes 1073741824 --enforce-eager    # on a CPU, with the gateway's bound there

Random weights in the published shape unless a model is given. The engine runs where the gateway puts it and is read
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
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.process.cpu_process import cpu_build, placement
from benchmarks.engine.gaps import STREAM_TOKENS, STREAMS, Round, kinds, measure_round, set_step_tokens
from benchmarks.engine.process import needs_plugin
from benchmarks.engine.specs import long_prompts
from benchmarks.results import record, typed

FIRST_ID = 300
"""Above the special tokens of both vocabularies; prompts are random ids from here to twice that."""


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

    async def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function of the worker says."""
        (found,) = await self._llm.collective_rpc(function, args=arguments)
        return found

    async def peak_bytes(self) -> int:
        """Most memory that the worker's tensors had since this was last asked; 0 without a GPU."""
        return int(await self.ask(_peak))


def _peak(worker: Any) -> int:
    import torch

    if not torch.cuda.is_available():
        return 0
    found = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return int(found)


async def gaps(engine: Engine, args: argparse.Namespace) -> tuple[dict[str, float], dict[str, Any]]:
    """What streams feel under each bound of a step's encoder tokens and beside each kind of neighbours, in turns.

    Raises:
        RuntimeError: several bounds, and the worker is a process of its own.
    """
    neighbours = kinds(args.long)
    found: dict[tuple[int, str], list[Round]] = {}
    for _ in range(args.gap_rounds):
        for tokens in args.step_tokens:
            if len(args.step_tokens) > 1 and not await engine.ask(set_step_tokens, tokens):
                raise RuntimeError("the engine's bound cannot be changed: the worker is a process of its own")
            for name, joining in neighbours.items():
                measured = await measure_round(engine, joining, args.seconds)
                found.setdefault((tokens, name), []).append(measured)
                print(f"{tokens} tokens a step, {name}: {measured}", flush=True)
    # What prompts do to their neighbours they do in every round, what else the machine does not.
    least = {key: min(one.client.ratio for one in rounds) for key, rounds in found.items()}
    for tokens in args.step_tokens:
        print(f"{tokens} tokens a step: " + ", ".join(f"{n} {least[tokens, n]:.2f}" for n in neighbours))
    figures = {f"worst_gap_over_median_{name}": least[args.step_tokens[0], name] for name in neighbours}
    details: dict[str, Any] = {}
    for (tokens, name), rounds in found.items():
        details.setdefault(str(tokens), {})[name] = [asdict(one) for one in rounds]
    return figures, details


async def first_tokens(engine: Engine, args: argparse.Namespace) -> tuple[dict[str, float], dict[str, Any]]:
    """Of new and repeated prompts, and of one at the model's limit."""
    figures: dict[str, float] = {}
    details: dict[str, Any] = {"ttft": {}, "limit": {}}
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
    return figures, details


async def measure(engine: Engine, args: argparse.Namespace) -> tuple[dict[str, float], dict[str, Any]]:
    """All figures, and what they were made from."""
    await engine.first_token(engine.prompt(64))
    figures, details = ({}, {}) if args.only_gaps else await first_tokens(engine, args)
    of_gaps, details["gaps"] = await gaps(engine, args)
    return figures | of_gaps, details


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
        "kv_cache_memory_bytes": args.kv_bytes,
        "enforce_eager": args.enforce_eager,
        **long_prompts(positions, args.step_tokens[0], cache_bytes=1 << 30, batched_tokens=2048),
    }
    if not args.enforce_eager:
        found["compilation_config"] = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
    return found


async def run(args: argparse.Namespace, model: Path) -> tuple[dict[str, float], dict[str, Any]]:
    """Starts the engine as the gateway does, measures, ends it."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.gc_utils import freeze_gc_heap
    from vllm.v1.engine.async_llm import AsyncLLM

    with placement(cpu_build(), 1) as placed:
        config = AsyncEngineArgs(**engine_arguments(args, model), **placed).create_engine_config()
    llm = AsyncLLM.from_vllm_config(config)
    freeze_gc_heap()  # else a collection stops the streams for milliseconds
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
        "--step-tokens", type=int, nargs="+", default=[128],
        help="encoder tokens of a step beside streams; the figures are the first one's",
    )  # fmt: skip
    parser.add_argument("--only-gaps", action="store_true", help="what neighbours feel, and nothing else")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=4, help="of each kind of neighbourhood")
    parser.add_argument("--gap-rounds", type=int, default=3, help="of all kinds, in turns")
    parser.add_argument("--kv-bytes", type=int, default=8 << 30)
    parser.add_argument("--enforce-eager", action="store_true", help="no graphs either; needed on a CPU")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    needs_plugin()
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
