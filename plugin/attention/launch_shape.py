"""How a launch of the merged attention is cut into programs: chosen on the host from numbers fixed at graph capture.

The numbers come from a sweep on an H200 (`python -m benchmarks.attention --sweep`).
"""

from dataclasses import dataclass

HEAD_DIMS = (32, 64, 128, 256)
"""Head sizes that the programs serve."""

MAX_BLOCK_M = 64
"""Rows of a program at most: the accumulator `[block_m, head_dim]` lives in registers."""

MAX_SPLITS = 128

FUSED_ROWS = 256
"""Rows of partial results up to which the last program of a row block joins them; more are joined by a launch of their
own, whose programs share the work."""

MANY_TOKENS = 512
"""Keys for each multiprocessor from which on bandwidth counts; below, a program's latency does."""

JOIN_ELEMENTS = 4096
"""Partial results that one program of the join holds in registers."""

# (block_m, whether bandwidth counts): keys of a tile, warps, pipeline stages, programs for each multiprocessor.
_TILES = {
    (16, False): (16, 4, 4, 1.5),
    (16, True): (16, 2, 3, 4.0),
    (32, False): (32, 4, 3, 1.5),
    (32, True): (32, 4, 3, 2.0),
    (64, False): (16, 4, 3, 1.5),
    (64, True): (16, 4, 4, 2.0),
}
_FLOAT32_TILE = (16, 4, 2, 2.0)

# block_m: keys of a split, at least. More rows make a partial result dearer against the keys that it stands for.
_SPLIT_TOKENS = {16: 64, 32: 128, 64: 128}


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """One launch's constants.

    Attributes:
        block_m: rows (query tokens times query heads of a KV head) of a program; a power of two.
        block_n: keys of a tile; a power of two.
        num_warps, num_stages: Triton's warps per program and depth of its software pipeline.
        splits: parts of a request's keys that different programs take, at most.
        row_blocks: programs that share out a request's rows.
        split_tokens: keys of a split, at least; how many splits a request has is found from it on the device.
        fused: whether the splits are joined in the launch that attends.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    splits: int
    row_blocks: int
    split_tokens: int = 1
    fused: bool = False


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
) -> LaunchShape:
    """The launch for one batch.

    Args:
        rows: query tokens of the longest request times query heads of a KV head.
        num_requests: requests of the batch, padding included.
        itemsize: bytes of a cache element.
        max_tokens: upper bound of a request's keys, self and encoder together.
        num_sms: multiprocessors of the device.
    """
    block_m = min(max(power_of_two(rows), 16), MAX_BLOCK_M)
    row_blocks = -(-rows // block_m)
    programs = num_requests * num_kv_heads * row_blocks
    many = programs * max_tokens >= MANY_TOKENS * num_sms
    block_n, num_warps, num_stages, per_sm = _FLOAT32_TILE if itemsize == 4 else _TILES[block_m, many]
    wanted = max(int(num_sms * per_sm) // programs, 1)
    split_tokens = _SPLIT_TOKENS[block_m]
    splits = min(wanted, max(max_tokens // split_tokens, 1), MAX_SPLITS)
    fused = splits * block_m <= FUSED_ROWS
    return LaunchShape(block_m, block_n, num_warps, num_stages, splits, row_blocks, split_tokens, fused)


def join_block_d(splits: int, head_dim: int) -> int:
    """The part of head_dim that one program of the join takes: more programs where there are many splits."""
    return min(max(JOIN_ELEMENTS // power_of_two(splits), 32), head_dim)
