"""One product over all layers' projections, stored where each layer's own would be."""

from __future__ import annotations

import pytest
import torch

from plugin.verifier import cross_kv
from plugin.verifier.cross_kv import CrossKV
from tests.plugin.verifier.cross_cases import (
    caches_of,
    decoder,
    fake_graphs,
    naive_stores,
    prompt_states,
    wanted,
)

TABLE = torch.tensor([[5, 5], [4, 5], [1, 3]], dtype=torch.int32)


@pytest.mark.parametrize("piece", [8192, 5])
def test_one_product_over_all_layers_is_each_layers_own(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(cross_kv, "EAGER_TOKENS", piece)
    made = decoder()
    naive_stores(monkeypatch, made)
    cross = CrossKV(made)
    cross.bind()
    states = prompt_states([3, 18], cross.weight)
    cross.write(states, [1, 2], TABLE)
    for cache, want in zip(caches_of(cross), wanted(cross, states, [1, 2], TABLE), strict=True):
        torch.testing.assert_close(cache, want, atol=1e-5, rtol=1e-5)


def test_caches_that_are_laid_out_differently_are_refused() -> None:
    made = decoder()
    made.layers[1].self_attn.attn.cross_cache.kv_cache = torch.zeros(6, 1, 32, 16)
    with pytest.raises(RuntimeError, match=r"\[6, 1, 32, 16\].*beside \[6, 1, 16, 16\]"):
        CrossKV(made).bind()


def test_nothing_is_written_before_the_caches_are_there() -> None:
    with pytest.raises(RuntimeError, match="not allocated"):
        CrossKV(decoder()).write([torch.zeros(1, 12)], [0], torch.zeros(1, 1, dtype=torch.int32))


def test_caches_that_are_bound_anew_are_stored_in_without_what_was_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A graph stores in the caches that it was captured with: those of the run that measured the memory, say."""
    made = decoder()
    naive_stores(monkeypatch, made)
    stored = fake_graphs(monkeypatch)
    cross = CrossKV(made)
    cross.bind()
    before = caches_of(cross)
    cross.capture([8, 32], TABLE, "a pool")
    for layer in cross.layers:
        layer.attn.cross_cache.kv_cache = torch.zeros_like(layer.attn.cross_cache.kv_cache)
    cross.bind()
    stored.clear()
    states = prompt_states([3], cross.weight)
    cross.write(states, [2], TABLE)
    assert stored == [3]
    assert not any(cache.any() for cache in before)
    cross.capture([8, 32], TABLE, "a pool")
    stored.clear()
    cross.write(states, [2], TABLE)
    assert stored == [8]
    for cache, want in zip(caches_of(cross), wanted(cross, states, [2], TABLE), strict=True):
        torch.testing.assert_close(cache, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("piece", "captured"), [(32, [32, 8]), (31, [8]), (7, [])])
def test_no_more_tokens_are_captured_than_are_in_memory_at_once(
    monkeypatch: pytest.MonkeyPatch, piece: int, captured: list[int]
) -> None:
    """The largest first: what the smaller ones need has room there."""
    monkeypatch.setattr(cross_kv, "EAGER_TOKENS", piece)
    made = decoder()
    naive_stores(monkeypatch, made)
    stored = fake_graphs(monkeypatch)
    cross = CrossKV(made)
    cross.bind()
    cross.capture([8, 32], TABLE, "a pool")
    assert stored == captured  # once each before it is captured
    assert not any(cache.any() for cache in caches_of(cross))
    cross.write(prompt_states([3], cross.weight), [2], TABLE)
    assert stored[len(captured) :] == [8 if captured else 3]
