"""A decoder's cross caches, what is stored in them, and graphs without a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.worker.gpu import buffer_utils

from plugin.attention.cross_write import naive_cross_write
from plugin.verifier import cross_kv
from plugin.verifier.cross_kv import CrossKV

PAGE = 16
EPS = 1e-6


def decoder(
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    blocks: int = 6,
    layers: int = 3,
    hidden: int = 12,
    heads: int = 2,
    kv_heads: int = 1,
    dim: int = 8,
) -> Any:
    """What `CrossKV` reads of a decoder, with random weights, always the same, and empty caches."""
    generator = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    def attention() -> Any:
        q, kv = heads * dim, kv_heads * dim
        cache = torch.zeros(blocks, kv_heads, PAGE, 2 * dim, device=device, dtype=dtype)
        return SimpleNamespace(
            q_size=q,
            kv_size=kv,
            qkv_proj=SimpleNamespace(weight=randn(q + 2 * kv, hidden), bias=None),
            k_norm=SimpleNamespace(weight=randn(dim), variance_epsilon=EPS),
            attn=SimpleNamespace(cross_cache=SimpleNamespace(kv_cache=cache), cross_name="c"),
        )

    return SimpleNamespace(layers=[SimpleNamespace(self_attn=attention()) for _ in range(layers)])


def caches_of(cross: CrossKV) -> list[torch.Tensor]:
    return [layer.attn.cross_cache.kv_cache for layer in cross.layers]


def prompt_states(lengths: Sequence[int], like: torch.Tensor, seed: int = 0) -> list[torch.Tensor]:
    """States of each prompt, `[length, hidden_size]`, of the weight's device and dtype."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, like.shape[1], generator=generator).to(like) for n in lengths]


def wanted(
    cross: CrossKV, states: Sequence[torch.Tensor], rows: Sequence[int], table: torch.Tensor
) -> list[torch.Tensor]:
    """Caches that were empty, with these prompts in them: layer by layer and prompt by prompt."""
    found = []
    for layer, cache in zip(cross.layers, caches_of(cross), strict=True):
        made = torch.zeros_like(cache)
        for each, row in zip(states, rows, strict=True):
            k, v = (each @ layer.qkv_proj.weight[layer.q_size :].T).split(layer.kv_size, dim=-1)
            k = k * torch.rsqrt(k.pow(2).mean(-1, keepdim=True) + EPS) * (1 + layer.k_norm.weight)
            for i, token in enumerate(torch.cat((k, v), dim=-1)):
                made[int(table[row, i // PAGE]), 0, i % PAGE] = token
        found.append(made)
    return found


def naive_stores(monkeypatch: pytest.MonkeyPatch, made: Any) -> None:
    """The program that stores is PyTorch, in the caches of this decoder, or of the one that was bound to before."""

    def store(
        kv: Any,
        k_weights: Any,
        eps: Any,
        addresses: torch.Tensor,
        like: Any,
        rows: Any,
        positions: Any,
        table: Any,
    ) -> None:
        caches = [layer.self_attn.attn.cross_cache.kv_cache for layer in made.layers]
        assert addresses.tolist() == [cache.data_ptr() for cache in caches]
        naive_cross_write(kv, k_weights, eps, caches, rows, positions, table)

    monkeypatch.setattr(cross_kv, "cross_write", store)


class FakeGraph:
    """Replays what was stored while it was captured, from the same tensors."""

    body: partial[None] | None = None

    def replay(self) -> None:
        assert self.body is not None
        self.body()


def fake_graphs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Capture works without a GPU.

    Returns:
        Tokens of all that was stored outside of captures, padding included, as it goes on.
    """
    capturing: list[FakeGraph] = []
    stored: list[int] = []
    stock = CrossKV.store

    @contextmanager
    def graph(captured: FakeGraph, *, pool: Any, stream: Any) -> Iterator[None]:
        assert pool == "a pool"
        capturing.append(captured)
        yield
        capturing.clear()

    def store(self: CrossKV, *args: torch.Tensor) -> None:
        if capturing:
            assert capturing[0].body is None  # all at once
            capturing[0].body = partial(store, self, *args)
            return
        stored.append(len(args[0]))
        stock(self, *args)

    monkeypatch.setattr(buffer_utils, "is_uva_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr("vllm.utils.torch_utils.current_stream", lambda: None)
    monkeypatch.setattr(CrossKV, "store", store)
    return stored
