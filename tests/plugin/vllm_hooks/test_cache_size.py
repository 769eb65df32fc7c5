"""The paged cache is as large as a full batch can use, and never larger than the share (N29)."""

from types import SimpleNamespace

import torch
from vllm.config import CacheConfig
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import CrossAttentionSpec, FullAttentionSpec, KVCacheGroupSpec

import plugin
from plugin.vllm_hooks.cache_size import HEAD_ROOM, full_batch_blocks

PAGE = 16
SHAPE = {"block_size": PAGE, "num_kv_heads": 1, "head_size": 256, "dtype": torch.bfloat16}
BYTES = 2 * PAGE * 256 * 2
"""Of one layer's page: keys and values of 16 tokens."""
SEQS, DECODER, ENCODER, K = 4, 4096, 1000, 7


def groups(own: int, cross: int) -> list[KVCacheGroupSpec]:
    """The verifier's and the draft's self layers, and the verifier's cross layers."""
    return [
        KVCacheGroupSpec([f"l{i}.self_cache" for i in range(own)], FullAttentionSpec(**SHAPE)),
        KVCacheGroupSpec([f"l{i}.cross_cache" for i in range(cross)], CrossAttentionSpec(**SHAPE)),
    ]


def config(**cache):
    found = CacheConfig(block_size=PAGE, **cache)
    found.kv_cache_layout = "LBHNC"  # as the engine core resolves it
    return SimpleNamespace(
        cache_config=found,
        attention_config=SimpleNamespace(hisparse_config=None),
        model_config=SimpleNamespace(
            max_model_len=DECODER, hf_config=SimpleNamespace(max_source_positions=ENCODER)
        ),
        ec_manager_config=SimpleNamespace(manager_config={}),
        scheduler_config=SimpleNamespace(max_num_seqs=SEQS, max_num_encoder_input_tokens=8192),
        num_speculative_tokens=K,
        num_lookahead_tokens=K,
    )


def test_blocks_by_hand():
    """31 self layers and 26 cross layers: pages for 4096 + 14 and for 1000 tokens of each of four requests."""
    request = -(-(DECODER + 2 * K) // PAGE) + -(-ENCODER // PAGE)
    assert full_batch_blocks(config(), groups(31, 26)) == 1 + int(HEAD_ROOM * SEQS * request)
    # Layers share a block's memory, they do not add blocks.
    assert full_batch_blocks(config(), groups(8, 6)) == full_batch_blocks(config(), groups(31, 26))


def blocks(vllm_config, available: int, own: int = 31, cross: int = 26) -> int:
    plugin.register()
    return kv_cache_utils.get_kv_cache_config_from_groups(
        vllm_config, groups(own, cross), available
    ).num_blocks


def test_what_a_full_batch_uses_and_no_more():
    """122 GB are offered: taken is what four full requests need; in vLLM's own arithmetic it holds them all."""
    taken = blocks(config(), 122 << 30)
    assert taken == full_batch_blocks(config(), groups(31, 26))
    of_one = -(-(DECODER + 2 * K) // PAGE) + -(-ENCODER // PAGE)
    assert 1 + SEQS * of_one <= taken <= 1 + 2 * SEQS * of_one
    assert taken * 31 * BYTES < 1 << 30


def test_the_share_is_the_upper_bound():
    """Where the share is less than the need, vLLM's own sizing stands."""
    assert blocks(config(), 100 * 31 * BYTES) == 100


def test_a_size_that_is_given_is_taken():
    assert blocks(config(kv_cache_memory_bytes=9999 * 31 * BYTES), 9999 * 31 * BYTES) == 9999


def test_one_block_is_one_block():
    """vLLM 0.33 asks for a single block first, and takes its size for that of every block."""
    vllm_config = config()
    vllm_config.ec_manager_config.manager_config = {"cache_bytes": 1 << 30}
    assert blocks(vllm_config, 31 * BYTES) == 1


def test_other_models_are_left_alone():
    one = [KVCacheGroupSpec(["a", "b"], FullAttentionSpec(**SHAPE))]
    plugin.register()
    found = kv_cache_utils.get_kv_cache_config_from_groups(config(), one, 50_000 * 2 * BYTES)
    assert found.num_blocks == 50_000
