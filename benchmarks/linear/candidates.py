"""Cuts worth trying for each projection, and why.

The memory's bandwidth at its latency takes some 40 KiB under way in each of the 132 multiprocessors: stages - 1 tiles
of block_n x block_k weights (gate and up: twice that), in as many programs as a multiprocessor has. Every program reads
x besides, num_tokens / block_n times the weights in all (gate and up share it), out of the L2 cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from benchmarks.linear.stack import CONTEXT_SHAPES, SHAPES
from plugin.projection.triton_linear import Cut, fetched_tiles


class Tiles(NamedTuple):
    """Outputs and inputs of a tile, warps, pipeline stages, shares of the inputs."""

    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    splits: int = 1


CANDIDATES: Final[dict[str, tuple[Tiles, ...]]] = {
    # 3.5 MB, all of them fetched ahead: what is left is the way from the L2 cache, in three rounds of three tiles or,
    # with more stages, in one. Wider tiles halve x's share, which at 32 tokens is twice the weights'.
    "qkv": (
        Tiles(16, 128, 4, 4),
        Tiles(16, 128, 4, 8),
        Tiles(16, 128, 2, 5),
        Tiles(16, 64, 4, 6),
        Tiles(32, 128, 4, 6),
        Tiles(64, 128, 4, 5),
    ),
    # 2.4 MB in 72 programs, fewer than multiprocessors. In shares that the norm behind adds up the tiles are wider.
    "o": (
        Tiles(64, 128, 4, 4, 4),
        Tiles(64, 128, 4, 4, 8),
        Tiles(64, 128, 4, 4, 2),
        Tiles(64, 64, 4, 4, 4),
        Tiles(32, 128, 4, 4, 4),
        Tiles(16, 128, 4, 8),
        Tiles(16, 128, 2, 5),
    ),
    # 31.9 MB in 216 programs with 48 KiB under way each: enough, if the tensor cores' part is hidden. More warps or
    # smaller tiles hide it better, wider ones have less of it.
    "gate_up": (
        Tiles(32, 128, 4, 4),
        Tiles(32, 64, 4, 6),
        Tiles(32, 128, 8, 4),
        Tiles(64, 64, 8, 5),
        Tiles(64, 64, 4, 5),
        Tiles(64, 128, 8, 3),
        Tiles(64, 128, 4, 3),
        Tiles(128, 64, 8, 4),
    ),
    # 15.9 MB, 54 tiles of 128 inputs. 64 outputs in 9 shares: 162 programs; in 6: 108, fewer than multiprocessors, with
    # more under way in each. 32 outputs in 6 shares: 216 programs, in 9: 324; x twice as often.
    "down": (
        Tiles(64, 128, 4, 4, 9),
        Tiles(64, 128, 8, 4, 9),
        Tiles(64, 128, 4, 5, 6),
        Tiles(64, 64, 4, 6, 9),
        Tiles(32, 128, 4, 4, 6),
        Tiles(32, 128, 4, 5, 6),
        Tiles(32, 128, 4, 4, 9),
        Tiles(16, 128, 4, 5, 6),
    ),
    # 13.3 MB, 45 tiles of 128 inputs.
    "taps": (
        Tiles(64, 128, 4, 4, 9),
        Tiles(64, 128, 4, 5, 9),
        Tiles(64, 128, 4, 5, 5),
        Tiles(32, 128, 4, 4, 5),
        Tiles(32, 128, 4, 4, 9),
        Tiles(16, 128, 4, 5, 5),
    ),
}
"""By projection; the first is what `triton_linear.choose_cut` chooses for 16 tokens at most."""

FETCHES: Final = (0, 4 << 20, 8 << 20, 16 << 20)
"""Of a launch's weights, bytes that are fetched ahead."""


def cuts(name: str, fetches: tuple[int, ...] = FETCHES) -> Iterator[Cut]:
    """All of a projection's, with as many tiles ahead as each of `fetches` allows."""
    outputs, inputs = {**SHAPES, **CONTEXT_SHAPES}[name]
    for tiles in CANDIDATES[name]:
        block_n, block_k, num_warps, num_stages, splits = tiles
        for fetched in sorted({fetched_tiles(outputs, inputs, block_k, splits, n) for n in fetches}):
            yield Cut(block_n, block_k, fetched, num_warps, num_stages, splits)
