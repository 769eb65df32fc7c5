"""How large the K/V cache of an engine on the CPU is to be; imports neither vLLM nor torch."""

from __future__ import annotations

from typing import Any

CPU_CACHE_MIN = 256 << 20
"""Bytes; the K/V cache on the CPU is never made smaller by default."""


def cpu_cache_bytes(config: Any, max_encoder_len: int) -> int:
    """K/V bytes for a full batch of full requests, twice over for block rounding; vLLM's own default on the CPU is a
    share of the whole machine's memory, which other programs may need. `config` is vLLM's.
    """
    decoder = config.model_config.hf_config.decoder
    draft_layers = 0
    if config.speculative_config is not None:
        draft_layers = config.speculative_config.draft_model_config.hf_config.num_hidden_layers
    own = (decoder.num_hidden_layers + draft_layers) * config.model_config.max_model_len
    cross = decoder.num_hidden_layers * max_encoder_len
    item = 2 * decoder.num_key_value_heads * decoder.head_dim * config.model_config.dtype.itemsize
    return max(CPU_CACHE_MIN, 2 * config.scheduler_config.max_num_seqs * (own + cross) * item)
