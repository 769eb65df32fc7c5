"""The hook into what the scheduler asks for every running request in every step, of which the answer is nearly always
the same: slots for its next tokens."""

from typing import Any

from plugin.vllm_hooks.hook import replace

_GROWING = "_t5gemma2_growing"
"""Attribute of a `KVCacheManager`: what `_growing` found."""


def slots_that_are_there() -> None:
    """The scheduler asks for slots for every running request in every step. vLLM then goes through all cache groups
    five times, though only once in `block_size` tokens a block is missing. For encoder-decoder models, whose decoder's
    blocks are never shared and whose cross blocks are all there at admission, it is enough to see that they are there.

    Unnecessary once vLLM looks first.
    """
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    def make(stock: Any) -> Any:
        def allocate_slots(
            self: Any,
            request: Any,
            num_new_tokens: int,
            *args: Any,
            num_lookahead_tokens: int = 0,
            **more: Any,
        ) -> Any:
            if not args and not more and num_new_tokens > 0 and (managers := _growing(self)):
                last = request.num_computed_tokens + num_new_tokens + num_lookahead_tokens
                last = min(last, self.max_model_len)
                held = request.request_id
                if all(last <= len(m.req_to_blocks.get(held, ())) * m.block_size for m in managers):
                    return self.empty_kv_cache_blocks
            return stock(
                self, request, num_new_tokens, *args, num_lookahead_tokens=num_lookahead_tokens, **more
            )

        return allocate_slots

    parameters = (
        "self", "request", "num_new_tokens", "num_new_computed_tokens", "new_computed_blocks", "num_lookahead_tokens",
        "num_external_computed_tokens", "delay_cache_blocks", "num_encoder_tokens", "full_sequence_must_fit",
        "reserved_blocks", "has_scheduled_reqs", "skip_zeroing_group_ids",
    )  # fmt: skip
    replace(KVCacheManager, "allocate_slots", parameters, make)


def _growing(manager: Any) -> tuple[Any, ...]:
    """The managers of the groups that grow with a request's decoder; none where more is to be done than to let them
    grow: windows that free blocks, blocks that are shared, models without cross caches."""
    found: tuple[Any, ...] | None = getattr(manager, _GROWING, None)
    if found is None:
        from vllm.v1.core.single_type_kv_cache_manager import CrossAttentionManager, FullAttentionManager

        every = manager.coordinator.single_type_managers
        kinds = {type(each) for each in every}
        plain = kinds == {CrossAttentionManager, FullAttentionManager} and not manager.enable_caching
        found = tuple(each for each in every if type(each) is FullAttentionManager) if plain else ()
        setattr(manager, _GROWING, found)
    return found
