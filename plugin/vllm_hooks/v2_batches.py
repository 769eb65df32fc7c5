"""Hooks into what the V2 model runner does for a batch in every step, though the step before did the same."""

from dataclasses import replace as with_fields
from typing import Any

import numpy as np
import torch

from plugin.vllm_hooks.hook import replace
from plugin.vllm_hooks.v2_runner import cross_kv_before_decoder

_BATCH = "_t5gemma2_batch"
"""Attribute of the runner's input buffers: what the batch whose bounds they hold was made from, and the batch."""


def parameters_of_new_requests_only() -> None:
    """The V2 runner sends the sampling parameters of all request slots, 15 arrays, to the device in every step. They
    are written where a request is added and nowhere else; here a step that adds none sends none.

    Unnecessary once the runner does so.
    """
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    def make(stock: Any) -> Any:
        def add_requests(self: Any, scheduler_output: Any) -> None:
            if scheduler_output.scheduled_new_reqs or not cross_kv_before_decoder(self):
                stock(self, scheduler_output)

        return add_requests

    replace(GPUModelRunner, "add_requests", ("self", "scheduler_output"), make)


def tensors_of_an_unchanged_batch() -> None:
    """In most steps the same requests bring as many tokens as in the step before. The V2 runner sends their slots and
    bounds to the device anew each time, two or three copies through fresh pinned memory, and derives in further
    launches what follows from them. Here such a step takes the tensors of the last one; only positions, lengths, input
    ids and what the host knows of the lengths are computed.

    Unnecessary once the runner keeps them itself.
    """
    from vllm.v1.worker.gpu.input_batch import InputBatch
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    def preparing(stock: Any) -> Any:
        def prepare_inputs(
            self: Any, scheduler_output: Any, batch_req_state: Any, batch_desc: Any, num_active_loras: int
        ) -> Any:
            key = _key(self, batch_req_state, batch_desc)
            last_key, last = getattr(self.input_buffers, _BATCH, (None, None))
            if key is not None and key == last_key:
                return _next(self, last, scheduler_output, batch_req_state)
            batch = stock(self, scheduler_output, batch_req_state, batch_desc, num_active_loras)
            setattr(self.input_buffers, _BATCH, (key, batch))
            return batch

        return prepare_inputs

    def making(stock: Any) -> Any:
        def make_dummy(num_reqs: int, num_tokens: int, input_buffers: Any, *args: Any, **kwargs: Any) -> Any:
            setattr(input_buffers, _BATCH, (None, None))  # it writes bounds of its own there
            return stock(num_reqs, num_tokens, input_buffers, *args, **kwargs)

        return make_dummy

    parameters = ("self", "scheduler_output", "batch_req_state", "batch_desc", "num_active_loras")
    replace(GPUModelRunner, "prepare_inputs", parameters, preparing)
    parameters = ("num_reqs", "num_tokens", "input_buffers", "max_query_len", "is_padding")
    replace(InputBatch, "make_dummy", parameters, making)


def _key(runner: Any, state: Any, batch_desc: Any) -> tuple[Any, ...] | None:
    """What a batch's tensors follow from, if that is all; None for steps with prefills and for other models."""
    if state.has_prefill or not cross_kv_before_decoder(runner):
        return None
    if runner.adaptive_verification is not None or runner.pcp_manager is not None:
        return None
    drafts = state.num_draft_tokens_np
    return (
        batch_desc,
        tuple(state.req_ids),
        state.idx_mapping_np.tobytes(),
        state.num_scheduled_tokens.tobytes(),
        None if drafts is None else drafts.tobytes(),
    )


def _next(runner: Any, last: Any, scheduler_output: Any, state: Any) -> Any:
    """The batch of the step after `last`, with the same requests in the same slots and as many tokens of each."""
    from vllm.v1.worker.gpu import model_runner as stock

    buffers, requests = runner.input_buffers, runner.req_states
    stock.prepare_pos_seq_lens(
        last.idx_mapping,
        last.query_start_loc,
        requests.num_computed_tokens.gpu,
        buffers.positions,
        buffers.seq_lens,
    )
    logits_indices = stock.combine_sampled_and_draft_tokens(
        buffers.input_ids,
        last.idx_mapping,
        requests.last_sampled_tokens,
        last.query_start_loc,
        last.seq_lens,
        requests.prefill_len.gpu,
        requests.draft_tokens,
        last.cu_num_logits,
        last.logits_indices.shape[0],
        runner.model_state.num_new_sampled_tokens_per_step,
    )
    computed = requests.num_computed_tokens_np[state.idx_mapping_np]
    longest = np.zeros(last.num_reqs_after_padding, dtype=np.int32)
    np.add(computed, state.num_scheduled_tokens, out=longest[: last.num_reqs])
    return with_fields(
        last,
        req_ids=state.req_ids,
        seq_lens_cpu_upper_bound=torch.from_numpy(longest),
        num_computed_tokens_np=computed,
        prefill_len_np=state.prefill_len_np,
        num_computed_prefill_tokens_np=state.num_computed_prefill_tokens_np,
        logits_indices=logits_indices,
        has_structured_output_reqs=scheduler_output.has_structured_output_requests,
    )
