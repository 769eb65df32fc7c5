"""The fused norm, rotation and page write against what torch.compile makes of the same plus the page write."""

from collections.abc import Callable

import torch

from benchmarks.attention.timing import graph_us
from plugin.attention.norm_rope import norm_rope_write
from plugin.attention.paged_batch import allocate_cache
from plugin.attention.triton_kernel import write_kv

HEADS, KV_HEADS, DIM, PAGE, LAYERS, EPS = 4, 1, 256, 16, 26, 1e-6
TOKENS = (1, 8, 32, 256)


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS) * (1.0 + weight.float())
    return wide.to(x.dtype)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)


def norm_rope(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normed and rotated q, k and plain v, each `[num_tokens, heads, head_dim]`, in plain PyTorch."""
    q, k, v = qkv.unflatten(-1, (-1, q_weight.shape[0])).split([HEADS, KV_HEADS, KV_HEADS], dim=1)
    cos, sin = cos_sin[positions].float()[:, None].chunk(2, dim=-1)
    return _rotate(_norm(q, q_weight), cos, sin), _rotate(_norm(k, k_weight), cos, sin), v


def measure_norm_rope() -> list[dict[str, object]]:
    """Microseconds of both for some token counts, at the decoder shape of T5Gemma 2 1B in bfloat16."""
    compiled: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = torch.compile(
        norm_rope, dynamic=False
    )
    rows: list[dict[str, object]] = []
    for tokens in TOKENS:
        options = {"dtype": torch.bfloat16, "device": "cuda"}
        qkv = torch.randn(tokens, (HEADS + 2 * KV_HEADS) * DIM, **options)
        q_weight, k_weight = (torch.randn(DIM, **options) for _ in range(2))
        cos_sin = torch.randn(4096, DIM, **options)
        positions = torch.arange(tokens, device="cuda") + 100
        cache = allocate_cache(tokens, KV_HEADS, PAGE, DIM, "LBNHC", torch.bfloat16, "cuda")
        slots = torch.randperm(tokens * PAGE, device="cuda")[:tokens]
        q_out = torch.empty(tokens, HEADS, DIM, **options)
        inputs = (qkv, positions, cos_sin, q_weight, k_weight)

        def apart() -> None:
            _, k, v = compiled(*inputs)  # noqa: B023
            write_kv(cache, slots, k, v)  # noqa: B023

        def fused() -> None:
            norm_rope_write(qkv, q_out, cache, slots, positions, cos_sin, q_weight, k_weight, EPS)  # noqa: B023

        apart_us, fused_us = graph_us([apart] * LAYERS), graph_us([fused] * LAYERS)
        rows.append({
            "tokens": tokens, "apart_us": round(apart_us, 2), "fused_us": round(fused_us, 2),
            "saved_us_per_layer": round(apart_us - fused_us, 2),
        })  # fmt: skip
    return rows
