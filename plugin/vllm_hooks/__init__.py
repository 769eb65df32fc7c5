"""Every reach into vLLM's internals that is not a subclass, one function each.

Each docstring says what stock vLLM 0.32 does, why that is wrong for T5Gemma 2, and what would make the hook
unnecessary. A hook acts for T5Gemma 2, or for encoder-decoder models where it mends a fault that all of them have, and
leaves every other model as it was. `hook.replace` fails at install time, naming what is gone, when vLLM no longer has
what a hook replaces.
"""

from plugin.vllm_hooks import (
    cache_size,
    configuration,
    draft_length,
    front_end,
    processes,
    scheduler,
    slots,
    step_stats,
)
from plugin.vllm_hooks.hook import HookError

__all__ = ["HookError", "install"]


def install() -> None:
    """Install every hook that this process can need. Idempotent."""
    from vllm.platforms import current_platform

    configuration.model_config_update()
    configuration.speculators_types()
    configuration.speculators_method()
    configuration.draft_as_model()
    configuration.draft_beside_the_verifier()
    configuration.one_cache_group_a_kind()
    cache_size.as_much_as_a_full_batch_uses()
    slots.slots_that_are_there()
    slots.no_encoder_inputs_behind_the_first_token()
    draft_length.utility()
    draft_length.schedule_from_the_start()
    draft_length.no_more_drafts_than_asked_for()
    step_stats.steps_beside_vllms_statistics()
    scheduler.metrics_of_whole_requests()
    processes.from_the_fork_server()
    front_end.plain_prompts_to_the_encoder()
    front_end.max_tokens_by_decoder_length()
    if current_platform.is_cpu():  # the V1 runner; on CUDA `plugin.verifier.config` refuses it
        from plugin.vllm_hooks import eager_functions, v1_runner

        v1_runner.encoder_outputs_in_batch_order()
        v1_runner.encoder_passes_in_parts()
        v1_runner.block_proposer()
        v1_runner.no_constraints_on_no_tokens()
        v1_runner.expand_temperatures_on_cpu()
        eager_functions.eager_on_the_cpu()
    else:
        from plugin.vllm_hooks import quick_launch, v2_batches, v2_runner, v2_sampling

        v2_runner.block_speculators()
        v2_runner.encoder_passes_in_parts()
        v2_runner.compiled_decoder_beside_encoder_inputs()
        v2_runner.first_token_as_decode()
        v2_runner.mixed_decode_graphs()
        v2_batches.parameters_of_new_requests_only()
        v2_batches.tensors_of_an_unchanged_batch()
        v2_sampling.greedy_steps()
        quick_launch.quick_launches()
