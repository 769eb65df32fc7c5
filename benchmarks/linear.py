"""`python -m benchmarks.linear [--sweep]`: what a projection of few tokens costs a decoder's layer on this GPU.

A projection alone says little: launches overlap, and what one fetches ahead the one before it may miss. So the layers
of a decoder of T5Gemma 2 1B's shape are captured as one graph, each with weights of its own (1.4 GB, none of which is
in the L2 cache when its turn comes), once with cuBLAS and once with our own program. `--sweep` also times other cuts
of each projection, the others as they are: where the numbers of `triton_linear.choose_cut` come from.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from unittest import mock

import torch

from benchmarks.attention.timing import copy_bandwidth, graph_us
from benchmarks.attention.workloads import Workload
from plugin.attention import triton_kernel
from plugin.attention.norm_rope import norm_rope_write
from plugin.attention.triton_kernel import merged_attention
from plugin.projection import few_tokens, triton_linear
from plugin.projection.triton_linear import Cut
from plugin.projection.triton_residual_norm import norm_add_norm

LAYERS, HEADS, DIM, WINDOW, EPS = 26, 4, 256, 512, 1e-6
SHAPES = {"qkv": (1536, 1152), "o": (1152, 1024), "gate_up": (2 * 6912, 1152), "down": (1152, 6912)}
STEPS = ((1, 1), (4, 1), (1, 8), (2, 8), (4, 8), (32, 1))
"""Requests and their tokens."""
CUTS = ((16, 128, 2, 5), (16, 256, 4, 4), (16, 64, 4, 6), (32, 128, 4, 3), (32, 128, 4, 4), (32, 64, 4, 5))
"""Outputs and inputs of a tile, warps, pipeline stages."""


@dataclass
class Decoder:
    """The layers, and a step's inputs: `query_len` tokens of each request at the end of 128, behind 64 encoder keys.

    The attention is launched for `captured_len` keys of either kind, as in a graph that serves requests so long.
    """

    requests: int
    query_len: int
    captured_len: int = 1024
    weights: list[list[torch.Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        def random(*shape: int) -> torch.Tensor:
            return 0.03 * torch.randn(*shape, dtype=torch.bfloat16, device="cuda")

        work = Workload("", self.requests, self.query_len, 64, 128, WINDOW, captured_len=self.captured_len)
        self.batches = (work.copies() * LAYERS)[
            :LAYERS
        ]  # pages of many requests outgrow the L2 cache by themselves
        self.weights = [[random(*shape) for shape in SHAPES.values()] for _ in range(LAYERS)]
        tokens, hidden = self.requests * self.query_len, SHAPES["o"][0]
        self.x, self.residual, self.norm = random(tokens, hidden), random(tokens, hidden), random(hidden)
        self.head_norm, self.cos_sin = random(DIM), random(1024, DIM)
        place = torch.arange(128 - self.query_len, 128, device="cuda")
        table, page = self.batches[0].self_pages.block_table.long(), self.batches[0].self_pages.cache.shape[2]
        self.positions = place.repeat(self.requests)
        self.slots = (table[:, place // page] * page + place % page).flatten()

    def step(self) -> torch.Tensor:
        """All layers: `[num_tokens, hidden_size]`."""
        x, residual = self.x, self.residual
        for (qkv, o, gate_up, down), batch in zip(self.weights, self.batches, strict=True):
            projected = few_tokens.linear_op(x, qkv)
            q = projected.new_empty(len(x), HEADS, DIM)
            out = torch.empty_like(q)
            norm_rope_write(
                projected, q, batch.self_pages.cache, self.slots, self.positions, self.cos_sin,
                self.head_norm, self.head_norm, EPS,
            )  # fmt: skip
            pages = batch.self_pages, batch.cross_pages
            merged_attention(q, batch.query_start, self.query_len, *pages, WINDOW, DIM**-0.5, out)
            x = few_tokens.linear_op(out.flatten(1), o)
            x, residual, _ = norm_add_norm(x, residual, self.norm, self.norm, EPS)
            x = few_tokens.linear_op(few_tokens.gated_op(x, gate_up, "gelu"), down)
            x, residual, _ = norm_add_norm(x, residual, self.norm, self.norm, EPS)
        return x

    def us(self, max_tokens: int, shape: tuple[int, int] | None = None, cut: Cut | None = None) -> float:
        """Microseconds a layer, with our program up to `max_tokens` tokens, `shape` cut by `cut`."""

        def chosen(outputs: int, inputs: int) -> Cut | None:
            return cut if (outputs, inputs) == shape else choose(outputs, inputs)

        choose = triton_linear.choose_cut
        with (
            mock.patch.object(few_tokens, "MAX_TOKENS", max_tokens),
            mock.patch.object(few_tokens, "MAX_GATED_TOKENS", min(max_tokens, few_tokens.MAX_GATED_TOKENS)),
            mock.patch.object(triton_linear, "choose_cut", chosen),
        ):
            return graph_us([self.step], replays=7) / LAYERS


def cuts(outputs: int, inputs: int) -> Iterator[Cut]:
    """Cuts worth trying for a projection: other tiles, and none, some or all of them fetched ahead."""
    for block_n, block_k, warps, stages in CUTS:
        if inputs % block_k == 0:
            some = min(inputs // block_k, triton_linear.FETCH_BYTES // (2 * outputs * block_k))
            for fetched in sorted({0, some // 2, some}):
                yield Cut(block_n, block_k, fetched, warps, stages)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.linear", description=__doc__)
    parser.add_argument("--sweep", action="store_true")
    args = parser.parse_args()
    import vllm._custom_ops  # noqa: F401

    size = sum(2 * outputs * inputs for outputs, inputs in SHAPES.values())
    print(f"microseconds a layer; its weights alone {size / copy_bandwidth() * 1e6:.1f}")
    for requests, query_len in STEPS:
        decoder = Decoder(requests, query_len)
        tokens = requests * query_len
        title = f"{requests:2} x {query_len} tokens"
        print(f"{title}: cuBLAS {decoder.us(0):6.2f}, ours {decoder.us(tokens):6.2f}", flush=True)
        if args.sweep:
            for name in ("qkv", "o", "gate_up"):
                trials = sorted(
                    (decoder.us(tokens, SHAPES[name], cut), repr(cut)) for cut in cuts(*SHAPES[name])
                )
                for us, cut in trials[:3]:
                    print(f"    {name:8} {us:6.2f} {cut}", flush=True)
    for query_len in (1, 8):
        decoder = Decoder(1, query_len, captured_len=8192)
        ours = decoder.us(query_len)
        with mock.patch.object(triton_kernel, "join_overlaps", return_value=True):
            beside = decoder.us(query_len)
        title = f" 1 x {query_len} tokens, captured for 8192"
        print(
            f"{title}: cuBLAS {decoder.us(0):6.2f}, ours {ours:6.2f}, ours beside a join {beside:6.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
