"""The layers of a decoder, or of its draft, as one captured graph.

A projection alone says little: launches overlap, and what one fetches ahead the one before it may miss. So the layers
of T5Gemma 2 1B's shape are captured as one graph, each with weights of its own (1.4 GB, none of which is in the L2
cache when its turn comes).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from benchmarks.attention.workloads import Workload
from plugin.attention.norm_rope import norm_rope_write
from plugin.attention.triton_kernel import merged_attention
from plugin.drafts.kernels.context_pages import norm_context
from plugin.projection import few_tokens
from plugin.projection.residual_norm import add_norm_op, norm_add_norm_op

HEADS, DIM, WINDOW, EPS = 4, 256, 512, 1e-6
HIDDEN, TAPS = 1152, 5
DECODER_LAYERS, DRAFT_LAYERS = 26, 5
SHAPES = {"qkv": (1536, HIDDEN), "o": (HIDDEN, 1024), "gate_up": (2 * 6912, HIDDEN), "down": (HIDDEN, 6912)}
"""Outputs and inputs of a layer's projections."""
CONTEXT_SHAPES = {"taps": (HIDDEN, TAPS * HIDDEN), "context_kv": (DRAFT_LAYERS * 512, HIDDEN)}
"""Of a draft's, before its layers."""


def random(*shape: int) -> torch.Tensor:
    """bfloat16 on the GPU."""
    return 0.03 * torch.randn(*shape, dtype=torch.bfloat16, device="cuda")


@dataclass
class Weights:
    """A decoder's, by layer in the order of `SHAPES`; `context` are a draft's besides, in that of `CONTEXT_SHAPES`."""

    draft: bool
    layers: list[list[torch.Tensor]] = field(init=False)
    context: list[torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        count = DRAFT_LAYERS if self.draft else DECODER_LAYERS
        self.layers = [[random(*shape) for shape in SHAPES.values()] for _ in range(count)]
        self.context = [random(*shape) for shape in CONTEXT_SHAPES.values()] if self.draft else []

    @property
    def nbytes(self) -> int:
        return sum(weight.nbytes for weights in (*self.layers, self.context) for weight in weights)


@dataclass
class Stack:
    """The layers, and a step's inputs: `query_len` tokens of each request at the end of 128, behind 64 encoder keys.

    The attention is launched for `captured_len` keys of either kind, as in a graph that serves requests so long. That
    of a draft is the decoder's here.
    """

    weights: Weights
    requests: int
    query_len: int
    captured_len: int = 1024

    def __post_init__(self) -> None:
        count = len(self.weights.layers)
        work = Workload("", self.requests, self.query_len, 64, 128, WINDOW, captured_len=self.captured_len)
        # Pages of many requests outgrow the L2 cache by themselves.
        self.batches = (work.copies() * count)[:count]
        self.tokens = self.requests * self.query_len
        self.x, self.residual, self.norm = (
            random(self.tokens, HIDDEN),
            random(self.tokens, HIDDEN),
            random(HIDDEN),
        )
        self.taps, self.context = random(self.tokens, TAPS * HIDDEN), random(self.tokens, HIDDEN)
        self.head_norm, self.cos_sin = random(DIM), random(1024, DIM)
        place = torch.arange(128 - self.query_len, 128, device="cuda")
        table, page = self.batches[0].self_pages.block_table.long(), self.batches[0].self_pages.cache.shape[2]
        self.positions = place.repeat(self.requests)
        self.slots = (table[:, place // page] * page + place % page).flatten()

    def step(self) -> torch.Tensor:
        """All layers: `[num_tokens, hidden_size]`."""
        if self.weights.draft:
            taps, context_kv = self.weights.context
            few_tokens.linear_into(self.taps, taps, self.context)
            few_tokens.linear_op(norm_context(self.context, None, self.norm, EPS)[0], context_kv)
        x, residual = self.x, self.residual
        add = self._add_plain if self.weights.draft else self._add_normed
        for (qkv, o, gate_up, down), batch in zip(self.weights.layers, self.batches, strict=True):
            projected = few_tokens.linear_op(x, qkv)
            q = projected.new_empty(len(x), HEADS, DIM)
            out = torch.empty_like(q)
            norm_rope_write(
                projected, q, batch.self_pages.cache, self.slots, self.positions, self.cos_sin,
                self.head_norm, self.head_norm, EPS,
            )  # fmt: skip
            pages = batch.self_pages, batch.cross_pages
            merged_attention(q, batch.query_start, self.query_len, *pages, WINDOW, DIM**-0.5, out)
            x, residual = add(out.flatten(1), o, residual)
            x, residual = add(few_tokens.gated_op(x, gate_up, "gelu"), down, residual)
        return x

    def _add_normed(
        self, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The decoder's way from a sublayer's last projection to the next sublayer."""
        return norm_add_norm_op(x, weight, residual, self.norm, self.norm, EPS)[:2]

    def _add_plain(
        self, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A draft's."""
        return add_norm_op(x, weight, residual, self.norm, EPS)

    def per_layer(self, us: float) -> float:
        """A decoder's time by layer; a draft's as it is, since it has more than layers."""
        return us if self.weights.draft else us / len(self.weights.layers)
