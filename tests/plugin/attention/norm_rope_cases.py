"""The fused norm, rotation and page write: cases for the GPU and, in a process of its own, for Triton's interpreter."""

import json
import sys

import torch

from plugin.attention.norm_rope import norm_rope_write
from plugin.attention.paged_batch import LAYOUTS, allocate_cache
from plugin.attention.torch_paged import write_pages
from tests.plugin.attention.kernel_cases import relative_error


def _rotated_norm(
    x: torch.Tensor, weight: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    x = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * (1 + weight)
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def norm_rope_error(layout: str, device: str) -> float:
    """`norm_rope_write` against the same in float64, queries and pages together; one token of seven is padding."""
    torch.manual_seed(0)
    heads, kv_heads, dim, tokens, page = 3, 2, 32, 7, 16
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim, device=device)
    q_weight, k_weight = torch.randn(2, dim, device=device)
    cos_sin = torch.randn(50, dim, device=device)
    positions = torch.randint(0, 50, (tokens,), device=device)
    slots = torch.randperm(3 * page, device=device)[:tokens]
    slots[4] = -1
    cache = allocate_cache(3, kv_heads, page, dim, layout, torch.float32, device)
    want_cache = cache.double()
    q_out = torch.empty(tokens, heads, dim, device=device)
    norm_rope_write(qkv, q_out, cache, slots, positions, cos_sin, q_weight, k_weight, 1e-6)
    q, k, v = qkv.double().unflatten(-1, (-1, dim)).split([heads, kv_heads, kv_heads], dim=1)
    cos, sin = cos_sin.double()[positions][:, None].chunk(2, dim=-1)
    write_pages(want_cache, slots, _rotated_norm(k, k_weight.double(), cos, sin), v)
    want_q = _rotated_norm(q, q_weight.double(), cos, sin)
    return relative_error(q_out, want_q) + relative_error(cache, want_cache)


def bfloat16_errors(device: str) -> tuple[float, float]:
    """Errors in bfloat16 against float64: the fused one's, and that of a norm and a rotation which both round.

    The second is what vLLM's GemmaRMSNorm and rotary embedding do one after another.
    """
    torch.manual_seed(0)
    heads, kv_heads, dim, tokens, page = 4, 1, 256, 16, 16
    options = {"dtype": torch.bfloat16, "device": device}
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim, **options)
    q_weight, k_weight = torch.randn(2, dim, **options)
    angle = torch.rand(tokens, dim // 2, device=device) * 6
    cos_sin = torch.cat((angle.cos(), angle.sin()), dim=-1).bfloat16()
    cache = torch.zeros(1, kv_heads, page, 2 * dim, **options)
    q_out, order = torch.empty(tokens, heads, dim, **options), torch.arange(tokens, device=device)
    norm_rope_write(qkv, q_out, cache, order, order, cos_sin, q_weight, k_weight, 1e-6)
    got = torch.cat((q_out, cache[0, :, :, :dim].transpose(0, 1)), dim=1)

    x = qkv.unflatten(-1, (-1, dim))[:, : heads + kv_heads]
    weight = torch.cat((q_weight.expand(heads, dim), k_weight.expand(kv_heads, dim)))
    cos, sin = cos_sin[:, None].chunk(2, dim=-1)
    want = _rotated_norm(x.double(), weight.double(), cos.double(), sin.double())
    wide = x.float()
    normed = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + weight.float())).bfloat16()
    low, high = normed.chunk(2, dim=-1)
    apart = torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
    return relative_error(got, want), relative_error(apart, want)


def main() -> None:
    """Print one JSON object of errors."""
    json.dump(
        {
            "layouts": {layout: norm_rope_error(layout, "cpu") for layout in LAYOUTS},
            "bfloat16": bfloat16_errors("cpu"),
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
