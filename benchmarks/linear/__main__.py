"""`python -m benchmarks.linear [--sweep]`: what a projection of few tokens costs a decoder's layer on this GPU.

The layers are captured as one graph, all projections by cuBLAS or by our program; a draft's layers with the projection
of its taps likewise. `--sweep` also times other cuts of each projection, the others as they are: where the numbers of
`triton_linear.choose_cut` come from. It takes a minute.
"""

from __future__ import annotations

import argparse
from unittest import mock

from benchmarks.attention.timing import copy_bandwidth, graphs_us, require_gpu
from benchmarks.linear.stack import SHAPES, Stack, Weights
from benchmarks.linear.sweep import REPLAYS, sweep, us
from benchmarks.linear.ways import MOST_TOKENS, Way
from plugin.attention import triton_kernel

STEPS = ((1, 1), (4, 1), (1, 8), (2, 8), (4, 8), (32, 1), (8, 8), (64, 1), (16, 8), (32, 8))
"""Requests and their tokens."""
SWEPT = ((1, 1), (1, 8), (4, 8), (8, 8), (16, 8))
WAYS = {"cuBLAS": Way(max_tokens=0), "ours": Way(max_tokens=MOST_TOKENS)}


def compare(stack: Stack, title: str) -> None:
    """Print the time of each way, their replays in turns."""
    times = graphs_us([[way.of(stack.step)] for way in WAYS.values()], REPLAYS)
    found = (f"{name} {stack.per_layer(time):6.2f}" for name, time in zip(WAYS, times, strict=True))
    print(f"{title}: {', '.join(found)}", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.linear", description=__doc__)
    parser.add_argument("--sweep", action="store_true")
    args = parser.parse_args()
    require_gpu()
    import vllm._custom_ops  # noqa: F401

    bandwidth = copy_bandwidth()
    decoder, draft = Weights(draft=False), Weights(draft=True)
    floor = decoder.nbytes / len(decoder.layers) / bandwidth * 1e6
    print(f"a decoder, microseconds a layer; its weights alone {floor:.1f}")
    for step in STEPS:
        compare(Stack(decoder, *step), f"{step[0]:2} x {step[1]} tokens")
    for query_len in (1, 8):
        stack = Stack(decoder, 1, query_len, captured_len=8192)
        ours = us(stack, Way())
        with mock.patch.object(triton_kernel, "join_overlaps", return_value=True):
            beside = us(stack, Way())
        print(
            f" 1 x {query_len} tokens, captured for 8192: ours {ours:6.2f}, ours beside a join {beside:6.2f}"
        )
    print(
        f"a draft's layers and context, microseconds; their weights alone {draft.nbytes / bandwidth * 1e6:.1f}"
    )
    for requests in (1, 4):
        compare(Stack(draft, requests, 8), f"{requests:2} x 8 tokens")
    if not args.sweep:
        return
    swept = {f"a decoder, {n} x {query_len} tokens": Stack(decoder, n, query_len) for n, query_len in SWEPT}
    swept["a draft, 1 x 8 tokens"] = Stack(draft, 1, 8)
    for title, stack in swept.items():
        print(title, flush=True)
        sweep(stack, ("taps", "down") if stack.weights.draft else tuple(SHAPES))


if __name__ == "__main__":
    main()
