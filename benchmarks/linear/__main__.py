"""`python -m benchmarks.linear [--sweep]`: what a projection of few tokens costs a decoder's layer on this GPU.

The layers are captured as one graph: all projections by cuBLAS, the MLP's down projection or its gate and up alone,
or none. A draft's layers with the projection of its taps likewise, which is cuBLAS's where the down projection is.
`--sweep` also times other cuts of each projection, the others as they are: where the numbers of
`triton_linear.choose_cut` come from; and, at its end, launches that are let in early (`programs.py`). It takes a minute
and a half.
"""

from __future__ import annotations

import argparse
from unittest import mock

from benchmarks.attention.timing import copy_bandwidth, graphs_us
from benchmarks.linear.stack import SHAPES, Stack, Weights
from benchmarks.linear.sweep import REPLAYS, let_in, sweep, us
from benchmarks.linear.ways import Way
from plugin.attention import triton_kernel

STEPS = ((1, 1), (4, 1), (1, 8), (2, 8), (4, 8), (32, 1))
"""Requests and their tokens."""
SWEPT = ((1, 1), (1, 8), (4, 8))
WAYS = {
    "cuBLAS": Way(max_tokens=0),
    "down by cuBLAS": Way(split_tokens=0),
    "gate and up by cuBLAS": Way(gated_tokens=0),
    "ours": Way(),
}


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
    best = {}
    for title, stack in swept.items():
        print(title, flush=True)
        best[title] = sweep(stack, ("taps", "down") if stack.weights.draft else SHAPES)
    for title, stack in swept.items():
        print(f"{title}, launches let in early", flush=True)
        let_in(stack, best[title])


if __name__ == "__main__":
    main()
