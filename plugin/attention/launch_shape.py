"""How a launch of the merged attention is cut into programs: chosen on the host from numbers fixed at graph capture.

The numbers come from a sweep on an H200 (`python -m benchmarks.attention --sweep`).
"""

import math
from dataclasses import dataclass

HEAD_DIMS = (32, 64, 128, 256)
"""Head sizes that the programs serve."""

MAX_BLOCK_M = 64
"""Rows of a program at most: the accumulator `[block_m, head_dim]` lives in registers."""

MAX_SPLITS = 256

MANY_TOKENS = 512
"""Keys for each multiprocessor from which on bandwidth counts; below, a program's latency does."""

SHORT_TOKENS = 4096
"""Keys up to which a request is short: its splits are joined where they are attended."""

MAX_FUSED_SPLITS = 32
"""Splits up to which they are joined where they are attended: one program joins them all."""

SEVERAL_PROGRAMS = 16
"""Programs before any split from which on short requests are split less."""

JOIN_ELEMENTS = 4096
"""Partial results that one program of the join holds in registers."""

FUSED_ELEMENTS = 8192
"""The same of a program that attends: its registers are free by then."""


@dataclass(frozen=True, slots=True)
class Tile:
    """How programs work, and how many of them there are.

    Attributes:
        block_n, num_warps, num_stages: see `LaunchShape`.
        per_sm: programs for each multiprocessor that the splits are to give.
        slices: see `LaunchShape`, at most.
        max_splits: splits at most.
        split_tokens: see `LaunchShape`.
        fused: whether up to `MAX_FUSED_SPLITS` splits are joined in the launch that attends.
        block_m: rows of a program at least, most of them empty; 64 are what Hopper's asynchronous products take.
    """

    block_n: int
    num_warps: int
    num_stages: int
    per_sm: float
    slices: int
    max_splits: int
    split_tokens: int
    fused: bool
    block_m: int = 16


# By the power of two of the rows and by what the launch must serve: few programs of short requests (latency), several
# of them, few programs of requests that may be long, or so many keys that bandwidth counts.
_TILES = {
    (16, "short"): Tile(32, 4, 2, 2.0, 4, 32, 32, True),
    (16, "several"): Tile(64, 4, 2, 2.0, 2, 4, 64, True),
    (16, "long"): Tile(64, 4, 2, 1.0, 1, MAX_SPLITS, 64, False),
    (16, "many"): Tile(32, 4, 3, 2.0, 1, MAX_SPLITS, 64, False),
    (32, "short"): Tile(32, 4, 2, 2.0, 8, 16, 32, True),
    (32, "several"): Tile(64, 8, 3, 2.0, 2, 4, 192, True),
    (32, "long"): Tile(64, 8, 2, 1.0, 1, MAX_SPLITS, 64, False),
    (32, "many"): Tile(32, 4, 3, 2.0, 1, MAX_SPLITS, 64, False),
    (64, "short"): Tile(32, 4, 2, 2.0, 8, 16, 32, True),
    (64, "several"): Tile(64, 8, 3, 2.0, 2, 4, 192, True),
    (64, "long"): Tile(64, 8, 2, 1.0, 1, MAX_SPLITS, 64, False),
    (64, "many"): Tile(16, 4, 4, 2.0, 1, MAX_SPLITS, 64, False),
}
_FLOAT32_TILE = Tile(16, 4, 2, 2.0, 1, 32, 64, False)


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """One launch's constants.

    Attributes:
        block_m: rows (query tokens times query heads of a KV head) of a program; a power of two.
        block_n: keys of a tile; a power of two.
        num_warps, num_stages: Triton's warps per program and depth of its software pipeline.
        splits: parts of a request's keys that different programs take, at most.
        row_blocks: programs that share out a request's rows.
        split_tokens: keys of a split as long as there are splits enough; how many splits a request has is found from it
            on the device.
        fused: whether the splits are joined in the launch that attends.
        slices: programs that share out the head_dim of the values; each computes the scores for itself.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    splits: int
    row_blocks: int
    split_tokens: int = 1
    fused: bool = False
    slices: int = 1


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def choose_launch_shape(
    rows: int,
    num_requests: int,
    num_kv_heads: int,
    itemsize: int,
    max_tokens: int,
    num_sms: int,
    head_dim: int = 256,
) -> LaunchShape:
    """The launch for one batch.

    Args:
        rows: query tokens of the longest request times query heads of a KV head.
        num_requests: requests of the batch, padding included.
        itemsize: bytes of a cache element.
        max_tokens: upper bound of a request's keys, self and encoder together.
        num_sms: multiprocessors of the device.
        head_dim: size of a head, which bounds the slices.
    """
    block_m = min(max(power_of_two(rows), 16), MAX_BLOCK_M)
    row_blocks = -(-rows // block_m)
    programs = num_requests * num_kv_heads * row_blocks
    if programs * max_tokens >= MANY_TOKENS * num_sms:
        load = "many"
    elif max_tokens > SHORT_TOKENS:
        load = "long"
    else:
        load = "several" if programs >= SEVERAL_PROGRAMS else "short"
    tile = _FLOAT32_TILE if itemsize == 4 else _TILES[block_m, load]
    block_m = max(block_m, tile.block_m)
    wanted = max(int(num_sms * tile.per_sm) // programs, 1)
    # As many slices as splits at most: a slice reads all keys of its split.
    slices = min(1 << (math.isqrt(wanted).bit_length() - 1), tile.slices, head_dim // 16)
    splits = min(max(wanted // slices, 1), -(-max_tokens // tile.split_tokens), tile.max_splits)
    return LaunchShape(
        block_m, tile.block_n, tile.num_warps, tile.num_stages, splits, row_blocks,
        tile.split_tokens, tile.fused and splits <= MAX_FUSED_SPLITS, slices,
    )  # fmt: skip


def join_block_d(splits: int, head_dim: int) -> int:
    """The part of head_dim that one program of the join takes: more programs where there are many splits."""
    return min(max(JOIN_ELEMENTS // power_of_two(splits), 32), head_dim)


def join_block_r(splits: int) -> int:
    """Rows of a program of the join: several where there are few splits, and so as a rule many requests."""
    return 4 if splits <= 4 else 1


def join_overlaps(splits: int, programs: int, num_sms: int) -> bool:
    """Whether the launch behind the join may begin beside its programs.

    Not where they take most of the device and many splits say that there are few requests: the next launch, which then
    has few programs, would be crowded onto the multiprocessors that happen to be free.
    """
    return splits <= 4 or 2 * programs <= num_sms


def join_block_s(splits: int) -> int:
    """Splits that a program joins at once; few values, so that few programs are compiled."""
    return max(power_of_two(splits), 16)


def join_block_e(splits: int, rows: int, width: int) -> int:
    """Of a block's `rows` times `width` results, how many a program that attends joins at once."""
    return min(max(FUSED_ELEMENTS // join_block_s(splits), 32), rows * width)
