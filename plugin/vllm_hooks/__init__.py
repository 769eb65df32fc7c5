"""Every reach into vLLM's internals that is not a subclass, one function each.

Each docstring says what stock vLLM 0.32 does, why that is wrong for T5Gemma 2, and what would make the hook
unnecessary. A hook acts for T5Gemma 2, or for encoder-decoder models where it mends a fault that all of them have, and
leaves every other model as it was. `hook.replace` fails at install time, naming what is gone, when vLLM no longer has
what a hook replaces. What only the V2 runner needs stands in `v2`.
"""

from plugin.vllm_hooks import (
    cache_size,
    configuration,
    cross_pages,
    draft_length,
    executor,
    front_end,
    processes,
    scheduler,
    slots,
    step_stats,
    structured_output,
)
from plugin.vllm_hooks.hook import HookError

__all__ = ["HookError", "install"]


def install() -> None:
    """Install every hook that this process can need. Idempotent."""
    from vllm.platforms import current_platform

    of_every_runner()
    if current_platform.is_cpu():  # the V1 runner; on CUDA `plugin.verifier.config` refuses it
        of_the_v1_runner()
    else:
        of_the_v2_runner()


def of_every_runner() -> None:
    """The hooks that both runners need."""
    configuration.model_config_update()
    configuration.speculators_types()
    configuration.speculators_method()
    configuration.draft_as_model()
    configuration.draft_beside_the_verifier()
    configuration.one_cache_group_a_kind()
    cache_size.as_much_as_a_full_batch_uses()
    slots.slots_that_are_there()
    cross_pages.encoder_inputs_before_the_first_token()
    draft_length.utility()
    draft_length.schedule_from_the_start()
    draft_length.no_more_drafts_than_asked_for()
    step_stats.steps_beside_vllms_statistics()
    scheduler.metrics_of_whole_requests()
    executor.steps_without_a_future_of_their_own()
    structured_output.compact_json_by_request()
    processes.from_the_fork_server()
    front_end.plain_prompts_to_the_encoder()
    front_end.max_tokens_by_decoder_length()
    front_end.sampling_parameters_by_what_can_change()


def of_the_v1_runner() -> None:
    """The hooks of the CPU's runner."""
    from plugin.vllm_hooks import eager_functions, v1_runner

    v1_runner.encoder_outputs_in_batch_order()
    v1_runner.encoder_passes_in_parts()
    v1_runner.cross_slots_of_who_writes()
    v1_runner.block_proposer()
    v1_runner.no_constraints_on_no_tokens()
    v1_runner.expand_temperatures_on_cpu()
    eager_functions.eager_on_the_cpu()


def of_the_v2_runner() -> None:
    """The hooks of CUDA's runner."""
    from plugin.vllm_hooks import adaptive_verification
    from plugin.vllm_hooks.v2 import (
        batches,
        outputs,
        quick_launch,
        requests,
        runner,
        sampler_parameters,
        sampling,
        steps,
    )

    runner.block_speculators()
    runner.taps_where_the_draft_reads_them()
    runner.encoder_passes_in_parts()
    runner.compiled_decoder_beside_encoder_inputs()
    runner.first_token_as_decode()
    runner.mixed_decode_graphs()
    sampler_parameters.parameters_where_they_are_read()
    requests.new_requests_in_one_launch()
    batches.tensors_of_decode_batches()
    steps.steps_like_the_last()
    sampling.graphs_that_sample()
    sampling.greedy_steps()
    outputs.tokens_in_one_copy()
    outputs.drafts_that_stay_on_the_device()
    adaptive_verification.verified_drafts_from_the_device()
    quick_launch.quick_launches()
