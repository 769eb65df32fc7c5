"""Hooks into the V1 model runner, which serves where Triton does not: on the CPU."""

import copy
from typing import Any

import numpy as np
import torch

from plugin.vllm_hooks.hook import HookError, replace


def encoder_outputs_in_batch_order() -> None:
    """The V1 runner returns encoder outputs in scheduling order but maps cross slots in batch order. The two differ
    when a preempted request resumes beside new ones, and then requests silently read each other's prompts. V2 sorts by
    itself. T5Gemma 2's are looked up by their prompts besides: vLLM's runner encodes what it is given, also twice.

    Unnecessary once `GPUModelRunner._execute_mm_encoder` follows `input_batch.req_ids` and leaves out what is in its
    cache.
    """
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    from plugin.verifier.processing import MODALITY

    def make(stock: Any) -> Any:
        def _execute_mm_encoder(self: Any, scheduler_output: Any) -> Any:
            inputs = scheduler_output.scheduled_encoder_inputs
            if not self.model_config.is_encoder_decoder:
                return stock(self, scheduler_output)
            index = self.input_batch.req_id_to_index
            inputs = dict(sorted(inputs.items(), key=lambda kv: index[kv[0]]))
            states = _encoder_states(self)
            if states is None:
                scheduler_output = copy.copy(scheduler_output)
                scheduler_output.scheduled_encoder_inputs = inputs
                return stock(self, scheduler_output)
            features = [self.requests[name].mm_features[i] for name, wanted in inputs.items() for i in wanted]
            return states.of([(one.identifier, one.data[MODALITY].data) for one in features])

        return _execute_mm_encoder

    replace(GPUModelRunner, "_execute_mm_encoder", ("self", "scheduler_output"), make)


def encoder_passes_in_parts() -> None:
    """The V1 runner runs an encoder in the step that admits a request, in one go. Here it does a long prompt's pass in
    the parts that the scheduler's `PromptCacheManager` bids it, before the request is there.

    Unnecessary once vLLM's runners split encoder work over steps.
    """
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    def make(stock: Any) -> Any:
        def _process_encoder_cache_scheduler_output(self: Any, scheduler_output: Any) -> None:
            stock(self, scheduler_output)
            if (states := _encoder_states(self)) is not None:
                states.advance(scheduler_output.ec_manager_metadata)

        return _process_encoder_cache_scheduler_output

    parameters = ("self", "scheduler_output")
    replace(GPUModelRunner, "_process_encoder_cache_scheduler_output", parameters, make)


def _encoder_states(runner: Any) -> Any:
    """The runner's `EncoderStates`, or None where it serves another model."""
    from plugin.verifier.encoder.cache import keeps_states
    from plugin.verifier.encoder.states import EncoderStates
    from plugin.verifier.processing import MODALITY

    if not hasattr(runner.model, "begin_encoder_pass"):
        return None
    if "_t5gemma2_states" not in vars(runner):
        runner._t5gemma2_states = EncoderStates(
            runner.encoder_cache,
            lambda prompts: runner.model.embed_multimodal(**{MODALITY: prompts}),
            runner.model.begin_encoder_pass,
            keeps_states(runner.vllm_config),
        )
    return runner._t5gemma2_states


def cross_slots_of_who_writes() -> None:
    """The V1 runner maps slots of the cross cache for all requests of a step that have nothing computed. One that
    shares pages brings no encoder input, so that states and slots would not match; here it has no slots. (V2's writes
    follow the encoder inputs: `plugin.verifier.model_state`.)

    Unnecessary once the V1 runner maps slots for the encoder inputs of a step.
    """
    from vllm.model_executor.layers.attention import cross_attention
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    writes: list[np.ndarray] = []
    """Of the batch whose metadata is being built, by row: whether the request brings an encoder input."""

    def updating(stock: Any) -> Any:
        def _update_states(self: Any, scheduler_output: Any) -> Any:
            self._t5gemma2_encoder_inputs = scheduler_output.scheduled_encoder_inputs
            return stock(self, scheduler_output)

        return _update_states

    def measuring(stock: Any) -> Any:
        def _get_encoder_seq_lens(
            self: Any,
            num_scheduled_tokens: dict[str, int],
            kv_cache_spec: Any,
            num_reqs: int,
            for_cudagraph_capture: bool = False,
        ) -> Any:
            found = stock(self, num_scheduled_tokens, kv_cache_spec, num_reqs, for_cudagraph_capture)
            if found[1] is not None:
                writes.clear()
                if num_scheduled_tokens:  # no dummy batch
                    rows = np.zeros(num_reqs, dtype=bool)
                    for name in num_scheduled_tokens:
                        rows[self.input_batch.req_id_to_index[name]] = name in self._t5gemma2_encoder_inputs
                    writes.append(rows)
            return found

        return _get_encoder_seq_lens

    def mapping(stock: Any) -> Any:
        def _get_cross_slot_mapping(
            encoder_seq_lens: np.ndarray, block_table_tensor: torch.Tensor, kv_cache_spec: Any, device: Any
        ) -> torch.Tensor:
            if writes:
                encoder_seq_lens = np.where(writes[0][: len(encoder_seq_lens)], encoder_seq_lens, 0)
            slots: torch.Tensor = stock(encoder_seq_lens, block_table_tensor, kv_cache_spec, device)
            return slots

        return _get_cross_slot_mapping

    replace(GPUModelRunner, "_update_states", ("self", "scheduler_output"), updating)
    parameters = ("self", "num_scheduled_tokens", "kv_cache_spec", "num_reqs", "for_cudagraph_capture")
    replace(GPUModelRunner, "_get_encoder_seq_lens", parameters, measuring)
    of_slots = ("encoder_seq_lens", "block_table_tensor", "kv_cache_spec", "device")
    replace(cross_attention, "_get_cross_slot_mapping", of_slots, mapping)


def block_proposer() -> None:
    """The V1 runner builds its DFlash proposer by the name in its module; ours adds DSpark's sampling.

    Unnecessary once vLLM's V1 runner drives DSpark.
    """
    from vllm.v1.worker import gpu_model_runner

    from plugin.drafts.v1_proposer import BlockProposer

    if not hasattr(gpu_model_runner, "DFlashProposer"):
        raise HookError(
            "vllm.v1.worker.gpu_model_runner has no DFlashProposer any more: see plugin/vllm_hooks"
        )
    gpu_model_runner.DFlashProposer = BlockProposer


def expand_temperatures_on_cpu() -> None:
    """The CPU build's stand-in for the expand kernel casts temperatures to int64 and does not copy the result back: as
    soon as one request in a batch samples, all tokens of the batch come out wrong, greedy ones too.

    Unnecessary once `vllm.utils.cpu_triton_utils._expand_kernel_impl` keeps the dtype.
    """
    from vllm.v1.sample import rejection_sampler

    replace(
        rejection_sampler,
        "expand_batch_to_tokens",
        ("x", "cu_num_tokens", "num_tokens", "replace_from", "replace_to"),
        lambda stock: expand_batch_to_tokens,
    )


def no_constraints_on_no_tokens() -> None:
    """The rejection sampler applies top-k to the logits of drafted tokens even when a step has none, and top-k alone
    takes the maximum over no rows: the engine dies. Here every first step is such a step.

    Unnecessary once `vllm.v1.sample.rejection_sampler.apply_sampling_constraints` bears an empty batch.
    """
    from vllm.v1.sample import rejection_sampler

    def make(stock: Any) -> Any:
        def apply_sampling_constraints(
            logits: torch.Tensor, cu_num_draft_tokens: torch.Tensor, sampling_metadata: Any
        ) -> torch.Tensor:
            if not logits.shape[0]:
                return logits
            constrained: torch.Tensor = stock(logits, cu_num_draft_tokens, sampling_metadata)
            return constrained

        return apply_sampling_constraints

    parameters = ("logits", "cu_num_draft_tokens", "sampling_metadata")
    replace(rejection_sampler, "apply_sampling_constraints", parameters, make)


def expand_batch_to_tokens(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """`[batch_size]` -> `[num_tokens]`: value r for the tokens of request r, with `replace_from` made `replace_to`.

    Args:
        cu_num_tokens: `[batch_size]`, cumulative tokens, each request's own included.
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    expanded = torch.repeat_interleave(x, counts.long(), output_size=num_tokens)
    return torch.where(expanded == replace_from, torch.full_like(expanded, replace_to), expanded)
