"""Size of the K/V cache on the CPU."""

from __future__ import annotations

from types import SimpleNamespace

from plugin.verifier.cpu_cache import cpu_cache_bytes


def test_cache_on_the_cpu() -> None:
    """Room for a full batch of full requests of every layer, twice."""
    decoder = SimpleNamespace(num_hidden_layers=26, num_key_value_heads=1, head_dim=256)
    draft = SimpleNamespace(hf_config=SimpleNamespace(num_hidden_layers=5))
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            hf_config=SimpleNamespace(decoder=decoder), max_model_len=4096, dtype=SimpleNamespace(itemsize=2)
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=4),
        speculative_config=SimpleNamespace(draft_model_config=draft),
    )
    assert cpu_cache_bytes(config, 1000) == 2 * 4 * (31 * 4096 + 26 * 1000) * 2 * 256 * 2
