"""`python -m benchmarks.linear [--sweep]`: the decoder's projections of few tokens against cuBLAS on this GPU.

Microseconds a launch over as many weights as outgrow the L2 cache, one launch behind the other, as in a decoder. Shapes
of T5Gemma 2 1B in bfloat16; `--sweep` also times other cuts of the work: where `triton_linear.choose_cut` comes from.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import torch

from benchmarks.attention.timing import copy_bandwidth, graph_us
from plugin.projection.triton_linear import Cut, choose_cut, project

SHAPES = {"qkv": (1536, 1152), "o": (1152, 1024), "gate_up": (2 * 6912, 1152)}
TOKENS = (1, 8, 16, 32)
CUTS = ((16, 128, 4, 4), (16, 128, 2, 4), (16, 256, 4, 3), (16, 64, 2, 6), (32, 128, 4, 3), (32, 128, 4, 4),
        (32, 128, 8, 4), (32, 64, 4, 5), (64, 64, 4, 4), (64, 128, 8, 3))  # fmt: skip
"""Outputs and inputs of a tile, warps, pipeline stages."""
COPIED_BYTES = 180e6


def cuts(name: str) -> Iterator[Cut]:
    """Cuts worth trying for a projection: other tiles and bytes fetched ahead."""
    outputs, inputs = SHAPES[name]
    width = outputs // 2 if name == "gate_up" else outputs
    for block_n, block_k, warps, stages in CUTS:
        if width % block_n or inputs % block_k:
            continue
        tiles = inputs // block_k
        for fetched in sorted({0, tiles, min(tiles, (8 << 20) // (2 * outputs * block_k))}):
            yield Cut(block_n, block_k, fetched, warps, stages)


def compile_cut(name: str, cut: Cut) -> Cut | None:
    """Compile into Triton's cache on disk; None where it needs more than the device has."""
    outputs, inputs = SHAPES[name]
    try:
        x = torch.randn(1, inputs, dtype=torch.bfloat16, device="cuda")
        project(x, x.new_empty(outputs, inputs), cut, "gelu" if name == "gate_up" else "")
        torch.cuda.synchronize()
    except Exception:  # out of shared memory: not a candidate
        return None
    return cut


def apart(name: str, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """cuBLAS, and what stands behind the gated projection."""
    out = torch.nn.functional.linear(x, weight)
    if name != "gate_up":
        return out
    torch.ops._C.gelu_tanh_and_mul(out.new_empty(x.shape[0], out.shape[1] // 2), out)
    return out


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.linear", description=__doc__)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--workers", type=int, default=16)
    args = parser.parse_args()
    import vllm._custom_ops  # noqa: F401

    bandwidth = copy_bandwidth()
    usable: dict[str, list[Cut]] = {}
    if args.sweep:
        jobs = [(name, cut) for name in SHAPES for cut in cuts(name)]
        programs = {(name, replace(cut, fetched=0)) for name, cut in jobs}
        with ProcessPoolExecutor(args.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            done = set(
                zip(
                    (n for n, _ in programs), pool.map(compile_cut, *zip(*programs, strict=True)), strict=True
                )
            )
        for name, cut in jobs:
            if (name, replace(cut, fetched=0)) in done:
                usable.setdefault(name, []).append(cut)
    for name, tokens in itertools.product(SHAPES, TOKENS):
        outputs, inputs = SHAPES[name]
        act = "gelu" if name == "gate_up" else ""
        size = 2 * outputs * inputs
        weights = [
            torch.randn(outputs, inputs, dtype=torch.bfloat16, device="cuda")
            for _ in range(min(26, int(COPIED_BYTES / size) + 1))
        ]
        x = torch.randn(tokens, inputs, dtype=torch.bfloat16, device="cuda")

        def timed(call: Callable[[torch.Tensor], object]) -> float:
            return graph_us([lambda w=w: call(w) for w in weights], replays=7)  # type: ignore[misc]  # noqa: B023

        def ours(cut: Cut) -> float:
            return timed(lambda w: project(x, w, cut, act))  # noqa: B023

        chosen = choose_cut(outputs, inputs)
        assert chosen is not None
        line = f"{name:8} {tokens:3} tokens: bytes {size / bandwidth * 1e6:5.2f} us, cuBLAS "
        print(f"{line}{timed(lambda w: apart(name, x, w)):6.2f}, ours {ours(chosen):6.2f} {chosen}")  # noqa: B023
        if args.sweep and tokens <= 8:
            trials = sorted((ours(cut), i) for i, cut in enumerate(usable.get(name, [])))
            for us, i in trials[:4]:
                print(f"    {us:6.2f} {usable[name][i]}", flush=True)


if __name__ == "__main__":
    main()
