"""Cases of the GPU programs behind a request's admission, for the GPU and, as `TRITON_INTERPRET=1 python -m ...`,
Triton's interpreter.

The interpreter must be chosen before Triton is first imported, so the test suite runs this module as a process of its
own and reads the errors that it prints.
"""

import json
import sys

import torch

from plugin.attention.bidirectional import bidirectional_attention, window_sides
from plugin.attention.bidirectional_kernel import attend_prompts
from plugin.attention.cross_write import cross_write, naive_cross_write
from plugin.attention.norm_rope import norm_rope_in_place
from plugin.attention.paged_batch import LAYOUTS, allocate_cache

LENGTHS: dict[str, list[int]] = {
    "one token": [1],
    "one prompt": [37],
    "several, around the tile": [31, 32, 33, 1, 64],
    "an empty one between": [5, 0, 40],
    "padding behind": [3, 70, 0, 0],
}
WINDOWS = (None, 1, 2, 7, 8, 33, 200)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
EPS = 1e-6


def attention_error(
    lengths: list[int],
    window: int | None,
    device: str,
    *,
    heads: int = 4,
    kv: int = 2,
    dim: int = 32,
    wrong: int = 0,
) -> float:
    """The float32 kernel over strided views of one projection, against PyTorch's attention prompt by prompt.

    `wrong` keys too many are shown to the right of each query: the control.
    """
    torch.manual_seed(0)
    total = sum(lengths)
    qkv = torch.randn(total, heads + 2 * kv, dim)
    starts = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    q, k, v = qkv.split([heads, kv, kv], dim=1)
    kept = [length for length in lengths if length]
    kept_starts = torch.tensor([0, *kept]).cumsum(0)
    want = bidirectional_attention(q, k, v, kept_starts, max(lengths), window, 0.3)
    sides = None if window is None else window_sides(window)
    if sides is not None:
        sides = (sides[0], sides[1] + wrong)
    q, k, v = qkv.to(device).split([heads, kv, kv], dim=1)
    # The bound may be larger than the longest prompt, as in a captured graph.
    got = attend_prompts(q, k, v, starts.to(device), max(lengths) + 40, sides, 0.3).cpu()
    return float((got - want).abs().max())


def rows_error(rows: slice, device: str, *, wrong: int = 0) -> float:
    """Some queries of a prompt over all of its keys, but for the last `wrong` of them: the control."""
    torch.manual_seed(0)
    qkv = torch.randn(70, 8, 32)
    q, k, v = qkv.split([4, 2, 2], dim=1)
    want = bidirectional_attention(q, k, v, torch.tensor([0, 70]), 70, None, 0.3)[rows]
    q, k, v = qkv.to(device).split([4, 2, 2], dim=1)
    q = q[rows]
    bounds = [torch.tensor([0, n], dtype=torch.int32, device=device) for n in (len(q), 70 - wrong)]
    got = attend_prompts(q, k, v, bounds[0], len(q), None, 0.3, bounds[1]).cpu()
    return float((got - want).abs().max())


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """vLLM's and transformers' Gemma norm."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    return (wide * (1.0 + weight.float())).to(x.dtype)


def _steps(got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest |got - want| over eps * max(|want|, 1)."""
    eps = torch.finfo(want.dtype).eps
    return float(((got.double() - want.double()).abs() / (eps * want.double().abs().clamp(min=1.0))).max())


def norm_rope_difference(dim: int, dtype: torch.dtype, device: str) -> float:
    """In-place norm and rotation against the single operations; values must not change at all."""
    torch.manual_seed(0)
    heads, kv, tokens = 3, 1, 6
    qkv = torch.randn(tokens, (heads + 2 * kv) * dim, dtype=dtype)
    q_weight, k_weight = (torch.randn(dim, dtype=dtype) for _ in range(2))
    positions = torch.tensor([0, 1, 2, 0, 1, 9])
    angles = torch.randn(10, dim // 2)
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1).to(dtype)
    got = qkv.clone().to(device)
    norm_rope_in_place(
        got,
        positions.to(device),
        cos_sin.to(device),
        q_weight.to(device),
        k_weight.to(device),
        EPS,
        heads,
        kv,
    )
    q, k, v = qkv.unflatten(-1, (-1, dim)).split([heads, kv, kv], dim=1)
    cos, sin = cos_sin[positions].float()[:, None].chunk(2, dim=-1)
    rotated = []
    for x in (_norm(q, q_weight), _norm(k, k_weight)):
        low, high = x.float().chunk(2, dim=-1)
        rotated.append(torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(dtype))
    want = torch.cat((*rotated, v), dim=1).flatten(1)
    got = got.cpu()
    if not torch.equal(got[:, (heads + kv) * dim :], want[:, (heads + kv) * dim :]):
        return float("inf")
    return _steps(got, want)


def cross_write_difference(
    layout: str, dtype: torch.dtype, device: str, *, kv_heads: int = 3, wrong: int = 0
) -> float:
    """All layers' pages against the layer-by-layer reference: shuffled rows and blocks, padding, untouched slots."""
    torch.manual_seed(0)
    layers, dim, page, blocks = 4, 32, 16, 12
    caches = [allocate_cache(blocks, kv_heads, page, dim, layout, dtype, device) for _ in range(layers)]
    wanted = [cache.cpu().clone() for cache in caches]
    lengths, request_rows = [5, 33, 1], [2, 0, 3]
    rows = torch.repeat_interleave(torch.tensor(request_rows), torch.tensor(lengths)).int()
    positions = torch.cat([torch.arange(length) for length in lengths]).int()
    rows, positions = torch.cat((rows, -torch.ones(2).int())), torch.cat((positions, torch.zeros(2).int()))
    table = torch.randperm(blocks)[: 4 * 3].view(4, 3).int()
    kv = torch.randn(len(rows), layers * 2 * kv_heads * dim, dtype=dtype)
    k_weights = torch.randn(layers, dim, dtype=dtype)
    naive_cross_write(kv, k_weights, EPS, wanted, rows, positions, table)
    addresses = torch.tensor([cache.data_ptr() for cache in caches], dtype=torch.int64, device=device)
    cross_write(
        kv.to(device), k_weights.to(device), EPS, addresses, caches[0], rows.to(device),
        positions.to(device) + wrong, table.to(device),
    )  # fmt: skip
    return max(_steps(got.cpu(), want) for got, want in zip(caches, wanted, strict=True))


def main() -> None:
    device = "cpu"
    json.dump(
        {
            "attention": {
                f"{name}, window {window}": attention_error(lengths, window, device)
                for name, lengths in LENGTHS.items()
                for window in WINDOWS
            },
            "rows": {
                str(rows): rows_error(rows, device)
                for rows in (slice(0, 70), slice(0, 33), slice(33, 64), slice(69, 70))
            },
            "norm_rope": {
                f"{dim} {name}": norm_rope_difference(dim, dtype, device)
                for dim in (32, 64)
                for name, dtype in DTYPES.items()
            },
            "controls": {
                "keys": 1e6 * rows_error(slice(0, 33), device, wrong=1),
                "window": 1e6 * attention_error([37], 8, device, wrong=1),
                "slot": cross_write_difference(next(iter(LAYOUTS)), torch.float32, device, wrong=1),
            },
            "cross_write": {
                f"{layout} {name}": cross_write_difference(layout, dtype, device)
                for layout in LAYOUTS
                for name, dtype in DTYPES.items()
            },
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
