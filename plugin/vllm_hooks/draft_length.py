"""Hooks into K, the number of drafted tokens that are verified, from start-up on and while the engine runs.

vLLM has one number for the drafted and the verified tokens, `num_speculative_tokens`. A block-diffusion draft is right
about the block that it was trained on: here that number is the trained block's, and the scheduler's list of draft
lengths by batch size, which it reads in every step, says how many are verified.
"""

from typing import Any

from plugin.vllm_hooks.hook import HookError, replace
from plugin.vllm_hooks.step_stats import note_cut_drafts

FIRST_LENGTH = "draft_length"
"""Attribute of a `SpeculativeConfig`: K when the engine starts. Not a key of its own: those are vLLM's, and one in the
draft's hf config would make `torch.compile` start anew for every K."""


def set_draft_length(self: Any, k: int) -> None:
    """EngineCore's utility: from the next step on, draft so many tokens for every request; 0 drafts none.

    What was drafted before is still verified, so the first step has the old K. Nothing is rebuilt: both runners draft
    the whole block, or none of it, and write the draft's context K/V in any case, so that a later K finds them there.

    Raises:
        ValueError: no draft is served, or it drafts fewer tokens.
    """
    scheduler = self.scheduler
    if scheduler.dynamic_sd_lookup is None:
        raise ValueError("no draft is served")
    if not 0 <= k <= scheduler.num_spec_tokens:
        raise ValueError(f"K is {k}, but the draft allows 0 ... {scheduler.num_spec_tokens}")
    scheduler.dynamic_sd_lookup = [k] * len(scheduler.dynamic_sd_lookup)


def utility() -> None:
    """The front end calls methods of EngineCore by name, `call_utility_all_async("set_draft_length", k)` those of every
    data-parallel engine; vLLM has none that changes K. Unnecessary once it has.
    """
    from vllm.v1.engine.core import EngineCore

    if getattr(EngineCore, "set_draft_length", set_draft_length) is not set_draft_length:
        raise HookError("vLLM's EngineCore has a set_draft_length of its own: see plugin/vllm_hooks")
    EngineCore.set_draft_length = set_draft_length


def schedule_from_the_start() -> None:
    """The list of draft lengths, for T5Gemma 2: K for every batch size.

    vLLM has none unless the speculative config names a schedule, which it drops under data parallelism and answers
    with piecewise graphs on the V1 runner. Without a list it also pads: when a request with exactly one token to
    compute joins a running batch, it is given K placeholder drafts, which are counted as rejected. T5Gemma 2's decoder
    prompt *is* one token, so every joining request would put K rejected drafts into the counters, and the same seed
    would give another text than alone.

    Unnecessary once K is a setting of the running engine and placeholders are told from drafts.
    """
    from vllm.v1.core.sched.scheduler import Scheduler

    def make(stock: Any) -> Any:
        def init(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
            stock(self, vllm_config, *args, **kwargs)
            if self.is_encoder_decoder and self.num_spec_tokens > 0 and self.dynamic_sd_lookup is None:
                k = getattr(vllm_config.speculative_config, FIRST_LENGTH, self.num_spec_tokens)
                self.dynamic_sd_lookup = [k] * (self.scheduler_config.max_num_seqs + 1)

        return init

    parameters = (
        "self",
        "vllm_config",
        "kv_cache_config",
        "structured_output_manager",
        "block_size",
        "hash_block_size",
        "mm_registry",
        "include_finished_set",
        "log_stats",
    )
    replace(Scheduler, "__init__", parameters, make)


def no_more_drafts_than_asked_for() -> None:
    """The V1 runner gives every request a full block of zeros for drafts once the longest one is too near the end of
    the context for another block, whatever K is: at K = 1 seven would be verified, and at K = 0 any. It is also where
    grammars cut drafts, which is noted for the step's statistics.

    Unnecessary once the runner makes as many zeros as the step asked for.
    """
    from vllm.v1.core.sched.scheduler import Scheduler

    def make(stock: Any) -> Any:
        def update_draft_token_ids(self: Any, draft_token_ids: Any) -> None:
            # Nothing comes between a step's schedule and its drafts here: the asynchronous scheduler has another way.
            if self.is_encoder_decoder and self.dynamic_sd_lookup is not None:
                k = max(self.dynamic_sd_lookup)
                drafts = draft_token_ids.draft_token_ids
                draft_token_ids.draft_token_ids = [tokens[:k] for tokens in drafts]
            stock(self, draft_token_ids)
            note_cut_drafts(self, draft_token_ids)

        return update_draft_token_ids

    replace(Scheduler, "update_draft_token_ids", ("self", "draft_token_ids"), make)
