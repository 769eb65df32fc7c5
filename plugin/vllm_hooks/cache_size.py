"""The hook into how large the paged cache becomes."""

from typing import Any

from plugin.vllm_hooks.hook import replace

HEAD_ROOM = 1.25
"""Pages beyond a full batch's: those of ended requests come back a step late under asynchronous scheduling."""


def full_batch_blocks(vllm_config: Any, kv_cache_groups: Any) -> int:
    """Blocks that `max_num_seqs` requests of full length use at most, head room and vLLM's null block included.

    A request's blocks of a group hold its decoder positions and the draft tokens beyond them, or, in a group of cross
    caches, its encoder's tokens. Every group of layers takes its blocks from the one pool.
    """
    from vllm.v1.kv_cache_interface import CrossAttentionSpec

    from plugin.verifier.config import ENCODER_BUDGET_KEY

    model = vllm_config.model_config
    own = model.max_model_len + vllm_config.num_speculative_tokens + vllm_config.num_lookahead_tokens
    cross = getattr(model.hf_config, ENCODER_BUDGET_KEY)
    request = 0
    for group in kv_cache_groups:
        tokens = cross if isinstance(group.kv_cache_spec, CrossAttentionSpec) else own
        request += -(-tokens // group.kv_cache_spec.block_size)
    return 1 + int(HEAD_ROOM * vllm_config.scheduler_config.max_num_seqs * request)


def as_much_as_a_full_batch_uses() -> None:
    """Unless it is given a size, vLLM makes the cache as large as the share of the memory that it may use: 122 GB on an
    H200 for a model of two million parameters. That pays where pages outlive their request, which here none does;
    beyond what `max_num_seqs` full requests use, pages are never touched. Here the share is the upper bound only.

    The encoder states that the worker will hold come out of the share, too: none are there when vLLM measures.

    Where requests of full length need more than the share, and with a size or a number of blocks given, vLLM's own
    sizing stands. Unnecessary once vLLM bounds the cache by what a full batch can use.
    """
    from plugin.vllm_hooks.cache_planning import planning

    def make(stock: Any) -> Any:
        def get_kv_cache_config_from_groups(
            vllm_config: Any, kv_cache_groups: Any, available_memory: int
        ) -> Any:
            cache = vllm_config.cache_config
            given = cache.kv_cache_memory_bytes is not None or cache.num_gpu_blocks_override is not None
            names = (name for group in kv_cache_groups for name in group.layer_names)
            if not given and any(name.endswith(".cross_cache") for name in names):
                block = planning._pool_bytes_per_block(vllm_config, kv_cache_groups)
                if available_memory <= block:  # vLLM 0.33 tries one block first, to see how large it is
                    return stock(vllm_config, kv_cache_groups, available_memory)
                needed = full_batch_blocks(vllm_config, kv_cache_groups) * block
                held = vllm_config.ec_manager_config.manager_config.get("cache_bytes", 0)
                available_memory = min(available_memory - held, needed)
            return stock(vllm_config, kv_cache_groups, available_memory)

        return get_kv_cache_config_from_groups

    parameters = ("vllm_config", "kv_cache_groups", "available_memory")
    replace(planning, "get_kv_cache_config_from_groups", parameters, make)
