"""The context's keys and values of all layers in one launch: cases for the GPU and for Triton's interpreter."""

import json
import sys

import torch

from plugin.attention.paged_batch import LAYOUTS, allocate_cache
from plugin.attention.torch_paged import write_pages
from plugin.drafts.kernels.context_pages import addresses, norm_context, store_context
from tests.plugin.attention.kernel_cases import relative_error

LAYERS, TOKENS, KV_HEADS, DIM, PAGE = 3, 7, 2, 32, 16
# How the projection lays out layers and tokens: one product for all layers (DFlash), or one for each (DFlare).
ORDERS = ("tokens first", "layers first")


def context_error(layout: str, order: str, device: str, dtype: torch.dtype = torch.float32) -> float:
    """Against norm, rotation and write layer by layer in float64; one token of seven is padding."""
    torch.manual_seed(0)
    kv = torch.randn(LAYERS, TOKENS, 2, KV_HEADS, DIM, device=device, dtype=dtype)
    if order == "tokens first":
        kv = kv.transpose(0, 1).contiguous().transpose(0, 1)
    weights = torch.randn(LAYERS, DIM, device=device, dtype=dtype)
    cos_sin = torch.randn(50, DIM, device=device, dtype=dtype)
    positions = torch.randint(0, 50, (TOKENS,), device=device)
    slots = torch.randperm(3 * PAGE, device=device)[:TOKENS]
    slots[4] = -1
    caches = [allocate_cache(3, KV_HEADS, PAGE, DIM, layout, dtype, device) for _ in range(LAYERS)]
    want = [cache.double() for cache in caches]
    store_context(kv, caches[0], addresses(caches), slots, positions, cos_sin, weights, 1e-6)
    cos, sin = cos_sin.double()[positions][:, None].chunk(2, dim=-1)
    for layer in range(LAYERS):
        k, v = kv[layer].double().unbind(1)
        k = k * torch.rsqrt(k.square().mean(-1, keepdim=True) + 1e-6) * weights[layer].double()
        low, high = k.chunk(2, dim=-1)
        write_pages(
            want[layer], slots, torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1), v
        )
    return max(relative_error(got, expected) for got, expected in zip(caches, want, strict=True))


# Name: layers (None: one context for all), taps, width.
NORMS = {"one context": (None, 1, 64), "a mixture for each layer": (3, 4, 96)}


def norm_error(name: str, device: str, dtype: torch.dtype = torch.float32) -> float:
    """Against a mixture and a norm in float64, the mixture rounded between; rows of a wider tensor."""
    layers, taps, width = NORMS[name]
    torch.manual_seed(0)
    states = torch.randn(TOKENS, taps * width + 16, device=device, dtype=dtype)[:, : taps * width]
    weight = torch.randn(width, device=device, dtype=dtype)
    fusion = None if layers is None else torch.randn(layers, taps, device=device).softmax(-1).to(dtype)
    mixed = states.double()[None]
    if fusion is not None:
        mixed = torch.einsum("dt,nth->dnh", fusion.double(), states.double().unflatten(1, (taps, width)))
    mixed = mixed.to(dtype).double()
    want = mixed * torch.rsqrt(mixed.square().mean(-1, keepdim=True) + 1e-6) * weight.double()
    return relative_error(norm_context(states, fusion, weight, 1e-6), want)


def main() -> None:
    """Print one JSON object of errors."""
    errors = {
        f"{layout} {order}": context_error(layout, order, "cpu") for layout in LAYOUTS for order in ORDERS
    }
    json.dump(errors | {name: norm_error(name, "cpu") for name in NORMS}, sys.stdout)


if __name__ == "__main__":
    main()
