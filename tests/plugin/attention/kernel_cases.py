"""The Triton kernel's correctness cases, for the GPU and, as `TRITON_INTERPRET=1 python -m ...`, Triton's interpreter.

The interpreter must be chosen before Triton is first imported, so the test suite runs this module as a process of its
own and reads the errors that it prints.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace

import torch

from plugin.attention.launch_shape import LaunchShape
from plugin.attention.paged_batch import (
    LAYOUTS,
    BatchSpec,
    PagedBatch,
    allocate_cache,
    make_batch,
    naive_reference,
)
from plugin.attention.torch_paged import Pages, write_pages
from plugin.attention.torch_paged import merged_attention as paged_attention
from plugin.attention.triton_kernel import _finished, merged_attention, write_kv

TINY = BatchSpec(
    (), (), (), num_heads=4, num_kv_heads=2, head_dim=32, self_page=16, cross_page=32, dtype=torch.float32
)
TOLERANCE = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
SCALE = 0.3


def launch(
    splits: int,
    block_m: int = 16,
    block_n: int = 16,
    row_blocks: int = 1,
    split_tokens: int = 1,
    fused: bool = False,
) -> LaunchShape:
    return LaunchShape(block_m, block_n, 4, 2, splits, row_blocks, split_tokens, fused)


def batch(query_lens: list[int], self_lens: list[int], cross_lens: list[int], **shape: object) -> BatchSpec:
    return replace(
        TINY, query_lens=tuple(query_lens), self_lens=tuple(self_lens), cross_lens=tuple(cross_lens), **shape
    )


# Name: batch, window, launch (None: chosen by the module).
CASES: dict[str, tuple[BatchSpec, int | None, LaunchShape | None]] = {
    "prefill of the start token": (batch([1], [1], [1]), None, launch(1)),
    "prefill beside decodes": (batch([1, 1, 1], [1, 5, 33], [3, 40, 17]), None, launch(1)),
    "more rows than tokens and heads": (batch([4, 1], [37, 20], [18, 40]), None, launch(3, block_m=64)),
    "launch chosen by the module": (batch([1, 1], [20, 5], [3, 40]), None, None),
    "verification, K = 3": (batch([4, 4], [4, 37], [6, 18]), None, launch(1)),
    "verification, K = 15, in two row blocks": (
        batch([16, 3], [30, 3], [5, 20]),
        None,
        launch(2, row_blocks=2),
    ),
    "a request joins a verifying batch": (
        batch([1, 8, 1, 8], [1, 20, 33, 8], [30, 2, 4, 12]),
        None,
        launch(3),
    ),
    "window inside a tile": (batch([4, 1], [37, 40], [6, 18]), 3, launch(1)),
    "window of one key": (batch([2, 1], [33, 17], [16, 1]), 1, launch(2)),
    "window skips tiles": (batch([4, 1], [70, 100], [20, 33]), 18, launch(2)),
    "window wider than the sequence": (batch([2], [20], [10]), 512, launch(1)),
    "window over one split and another": (batch([8], [60], [40]), 20, launch(4)),
    "splits than tiles more": (batch([1, 1], [3, 40], [2, 20]), None, launch(8)),
    "one live split of eight": (batch([4, 1], [20, 9], [9, 17]), None, launch(8, split_tokens=32)),
    "one, two and five live splits": (
        batch([1, 4, 4], [3, 37, 100], [16, 30, 70]),
        None,
        launch(8, split_tokens=32),
    ),
    "mixed query lengths, padded requests": (
        batch([1, 4, 1, 4, 0, 0], [1, 4, 33, 90, 0, 0], [30, 2, 4, 60, 0, 0], padding=6),
        None,
        launch(6, split_tokens=16),
    ),
    "mixed query lengths under a window": (
        batch([1, 4, 1, 4], [1, 4, 60, 90], [30, 2, 4, 60]),
        18,
        launch(6, split_tokens=16),
    ),
    "split in the middle of the self part": (batch([1], [100], [20]), None, launch(3)),
    "encoder lengths at the edges of pages": (
        batch([1, 1, 1, 1], [1, 16, 17, 32], [15, 16, 31, 33]),
        None,
        launch(2),
    ),
    "padded requests and tokens": (batch([2, 0, 0], [20, 0, 0], [9, 0, 0], padding=3), None, launch(1)),
    "padded requests and tokens, split": (
        batch([2, 0, 0], [20, 0, 0], [9, 0, 0], padding=3),
        None,
        launch(3),
    ),
    "a query without any key": (batch([1, 1], [0, 9], [0, 9]), None, launch(1)),
    "a query without any key, split": (batch([1, 1], [0, 9], [0, 9]), None, launch(2)),
    "all keys in the cross cache": (batch([4, 4, 4], [0, 0, 0], [20, 9, 70]), None, launch(3)),
    "tiles wider than pages": (batch([1, 2], [70, 33], [70, 33]), None, launch(2, block_n=64)),
    "group of 1": (batch([3, 1], [20, 9], [9, 17], num_heads=2), None, launch(2)),
    "group of 3": (batch([3, 1], [20, 9], [9, 17], num_heads=3, num_kv_heads=1), 5, launch(2)),
    "group of 8": (batch([3, 1], [20, 9], [9, 17], num_heads=8, num_kv_heads=1), 5, launch(2, block_m=32)),
    "head_dim 64": (batch([3, 1], [20, 9], [9, 17], head_dim=64), None, launch(2)),
    "head_dim 128": (batch([3, 1], [20, 9], [9, 17], head_dim=128), None, launch(2)),
    "head_dim 256": (batch([3, 1], [20, 9], [9, 17], head_dim=256), None, launch(2)),
    "float16": (batch([3, 1], [20, 9], [9, 17], dtype=torch.float16), 5, launch(2)),
    "pages of 64 and 16": (batch([3, 1], [70, 9], [90, 17], self_page=64, cross_page=16), None, launch(2)),
    **{f"layout {name}": (batch([3, 1], [20, 9], [9, 40], layout=name), None, launch(2)) for name in LAYOUTS},
}


# Every case with several splits again with the join in the same launch.
CASES |= {
    f"{name}, joined by the last": (spec, window, replace(shape, fused=True))
    for name, (spec, window, shape) in CASES.items()
    if shape is not None and shape.splits > 1
}
# And with the values' head_dim shared out.
CASES |= {
    f"{name}, in slices": (spec, window, replace(shape, slices=2))
    for name, (spec, window, shape) in CASES.items()
    if shape is not None and ("joined" in name or shape.splits == 1)
}


def attend(inputs: PagedBatch, window: int | None, shape: LaunchShape | None) -> torch.Tensor:
    """The kernel's output; rows that it must not touch keep their 7."""
    out = torch.full_like(inputs.q, 7.0)
    merged_attention(
        inputs.q, inputs.query_start, max(inputs.spec.query_lens), inputs.self_pages, inputs.cross_pages,
        window, SCALE, out, launch=shape,
    )  # fmt: skip
    return out


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """|got - want| / |want| in float64 over all elements; NaN where got holds one."""
    want = want.to(got.device).double()
    return float((got.double() - want).norm() / want.norm())


def float64_reference(inputs: PagedBatch, window: int | None) -> torch.Tensor:
    """The whole batch by `torch_paged` in float64."""

    def wide(pages: Pages) -> Pages:
        return replace(pages, cache=pages.cache.double())

    return paged_attention(
        inputs.q.double(), inputs.query_start, max(inputs.spec.query_lens), wide(inputs.self_pages),
        wide(inputs.cross_pages), window, SCALE,
    )  # fmt: skip


def attention_error(name: str, device: str) -> float:
    """The kernel against the naive reference, padding's untouched rows included."""
    spec, window, shape = CASES[name]
    inputs = make_batch(spec, device)
    got = attend(inputs, window, shape)
    num_tokens = sum(spec.query_lens)
    if not bool((got[num_tokens:] == 7.0).all()):
        return float("inf")
    want = torch.zeros(num_tokens, spec.num_heads, spec.head_dim, dtype=torch.float64)
    seeing = [r for r, n in enumerate(spec.query_lens) if n and (spec.self_lens[r] or spec.cross_lens[r])]
    want[_tokens_of(spec, seeing)] = naive_reference(inputs, window, SCALE, seeing)
    return relative_error(got[:num_tokens], want)


def unfinished(device: str) -> int:
    """What is left in the counters of finished splits: each launch must leave zeros for the next."""
    return int(_finished(torch.device(device)).abs().sum())


# Name: one launch that serves requests of very different lengths.
SHARED = {
    "joined by the last": launch(6, block_m=32, split_tokens=16, fused=True),
    "joined by a launch": launch(6, block_m=32, split_tokens=16),
    "joined by the last, in slices": replace(launch(6, block_m=32, split_tokens=16, fused=True), slices=2),
}


def others_difference(name: str, device: str) -> float:
    """How far a request's result moves when the other requests of its batch have other lengths: not at all."""
    spec = batch([4, 4, 1], [37, 60, 20], [40, 70, 33])
    inputs = make_batch(spec, device)
    first = attend(inputs, 18, SHARED[name])[:4]
    for self_lens, cross_lens in (([37, 4, 1], [40, 1, 1]), ([37, 0, 0], [40, 0, 0])):
        changed = replace(
            inputs,
            self_pages=replace(
                inputs.self_pages, seq_lens=torch.tensor(self_lens, dtype=torch.int32, device=device)
            ),
            cross_pages=replace(
                inputs.cross_pages, seq_lens=torch.tensor(cross_lens, dtype=torch.int32, device=device)
            ),
        )
        again = attend(changed, 18, SHARED[name])[:4]
        if not torch.equal(first, again):
            return float((first - again).abs().max()) or float("nan")
    return 0.0


def _tokens_of(spec: BatchSpec, requests: list[int]) -> list[int]:
    starts = [sum(spec.query_lens[:r]) for r in range(len(spec.query_lens))]
    return [starts[r] + i for r in requests for i in range(spec.query_lens[r])]


def write_difference(layout: str, device: str, dtype: torch.dtype) -> float:
    """`write_kv` against `write_pages`: strided views of one projection, shuffled slots, two of them padding."""
    torch.manual_seed(0)
    kv_heads, dim, page, num_tokens = 3, 32, 16, 9
    got = allocate_cache(4, kv_heads, page, dim, layout, dtype, device)
    want = got.clone()
    k, v = torch.randn(num_tokens, kv_heads, 2 * dim + 8, dtype=dtype, device=device)[..., 8:].chunk(
        2, dim=-1
    )
    slots = torch.randperm(4 * page, device=device)[:num_tokens]
    slots[[2, 5]] = -1
    write_kv(got, slots, k, v)
    write_pages(want, slots, k, v)
    return float((got.float() - want.float()).abs().max())


def _shortened(pages: Pages) -> Pages:
    return replace(pages, seq_lens=pages.seq_lens - 1)


CONTROLS: dict[str, Callable[[PagedBatch], tuple[PagedBatch, int]]] = {
    "window off by one": lambda b: (b, 4),
    "last encoder key dropped": lambda b: (replace(b, cross_pages=_shortened(b.cross_pages)), 3),
    "positions shifted": lambda b: (replace(b, self_pages=_shortened(b.self_pages)), 3),
}


def control_error(name: str, device: str) -> float:
    """The error of a call that is wrong on purpose, which the comparison must see."""
    inputs = make_batch(batch([4, 4], [12, 33], [6, 18]), device)
    broken, window = CONTROLS[name](inputs)
    return relative_error(attend(broken, window, launch(2)), naive_reference(inputs, 3, SCALE, [0, 1]))


def main() -> None:
    """Print one JSON object: the error of each case, control and write."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    json.dump(
        {
            "cases": {name: attention_error(name, device) for name in CASES},
            "unfinished": unfinished(device),
            "others": {name: others_difference(name, device) for name in SHARED},
            "controls": {name: control_error(name, device) for name in CONTROLS},
            "writes": {layout: write_difference(layout, device, torch.float32) for layout in LAYOUTS},
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
