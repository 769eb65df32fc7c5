"""Cross pages that running requests of the same prompt share, and the hook that lets them.

What a prompt's cross keys and values are depends on its ids alone, and nothing writes to them once they are there.
vLLM's pool counts the owners of a block, but its cross-attention manager allocates blocks for every request: samples of
one request, and equal prompts at the same time, each have a copy of their own, and each writes it.
"""

from typing import Any

from plugin.vllm_hooks.hook import replace

_PAGES = "_t5gemma2_cross_pages"
"""Attribute of a `KVCacheManager`: its `CrossPages`."""


class CrossPages:
    """The cross blocks in a `KVCacheManager`.

    A request that waits is given a running one's blocks before vLLM asks what it needs; vLLM then counts them as
    allocated, hands them to the worker with the request, and lets each owner's go as it ends or is preempted.
    """

    def __init__(self, kv_cache_manager: Any) -> None:
        from vllm.v1.core.single_type_kv_cache_manager import CrossAttentionManager

        every = kv_cache_manager.coordinator.single_type_managers
        self._managers = [each for each in every if isinstance(each, CrossAttentionManager)]

    def share(self, holder: str, taker: str) -> None:
        """Make `taker`, a request without blocks, a further owner of those of `holder`.

        Raises:
            RuntimeError: the holder has none, or the taker has some.
        """
        for manager in self._managers:
            blocks = manager.req_to_blocks.get(holder)
            if not blocks or manager.req_to_blocks.get(taker):
                raise RuntimeError(f"cross pages of {holder} cannot be shared with {taker}")
            manager.block_pool.touch(blocks)
            manager.req_to_blocks[taker] = list(blocks)

    def give_back(self, taker: str) -> None:
        """`taker` could not be admitted after all."""
        for manager in self._managers:
            manager.free(taker)


def pages_of(kv_cache_manager: Any) -> CrossPages:
    """The manager's."""
    found: CrossPages | None = getattr(kv_cache_manager, _PAGES, None)
    if found is None:
        found = CrossPages(kv_cache_manager)
        setattr(kv_cache_manager, _PAGES, found)
    return found


def encoder_inputs_before_the_first_token() -> None:
    """The scheduler looks in every step which of a running request's encoder inputs it has to compute. Those of an
    encoder-decoder model are computed before its first token, as vLLM's own loop finds one by one. Before the first
    token, a request whose prompt's cross keys and values are in a running one's pages has none to compute either.

    Unnecessary once vLLM looks at the request first, and shares cross blocks.
    """
    from vllm.v1.core.sched.scheduler import Scheduler

    def make(stock: Any) -> Any:
        def _try_schedule_encoder_inputs(
            self: Any, request: Any, num_computed_tokens: int, num_new_tokens: int, encoder_compute_budget: int,
            shift_computed_tokens: int = 0,
        ) -> Any:  # fmt: skip
            if self.is_encoder_decoder:
                share = getattr(self.encoder_cache_manager, "share_pages", None)
                if num_computed_tokens > 0 or (share and share(request, pages_of(self.kv_cache_manager))):
                    return [], num_new_tokens, encoder_compute_budget, [], []
            return stock(
                self,
                request,
                num_computed_tokens,
                num_new_tokens,
                encoder_compute_budget,
                shift_computed_tokens,
            )

        return _try_schedule_encoder_inputs

    parameters = (
        "self", "request", "num_computed_tokens", "num_new_tokens", "encoder_compute_budget", "shift_computed_tokens",
    )  # fmt: skip
    replace(Scheduler, "_try_schedule_encoder_inputs", parameters, make)
