"""Hooks into what the V2 model runner does for a batch in every step, though the step before did the same."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from plugin.verifier import triton_step
from plugin.vllm_hooks.hook import replace
from plugin.vllm_hooks.v2.decode_batch import all_decode, place_of
from plugin.vllm_hooks.v2.runner import cross_kv_before_decoder

_KEPT = "_t5gemma2_kept"
"""Attribute of the runner's input buffers: a `Kept`."""


_COMPILED = "_t5gemma2_compiled"
"""Attribute of a runner that has launched the programs of `plugin.verifier.triton_step`. vLLM's warm-up has one decode
step of a kind, and they are launched from the second on: the first request would wait for Triton to compile them."""


@dataclass(slots=True)
class Kept:
    """The batch whose bounds stand in the runner's input buffers.

    Attributes:
        key: what it was made from, `_key`; None for a batch of which the next one takes nothing.
        batch: vLLM's `InputBatch`.
        attention: what vLLM's `prepare_attn` gave for it: block tables by cache group, and slots.
        latest: the last of the batches that took its tensors.
    """

    key: tuple[Any, ...] | None
    batch: Any
    attention: Any = None
    latest: Any = None


def tensors_of_decode_batches() -> None:
    """In most steps the same requests bring as many tokens as in the step before. The V2 runner sends their slots and
    bounds to the device anew each time, two or three copies through fresh pinned memory, and derives in further
    launches what follows from them. Here such a step takes the tensors of the last one; only positions, lengths, input
    ids, slots, block tables and what the host knows of the lengths are computed, those on the device in one launch
    instead of four. Where another batch replays a decode graph, one that admits requests among them, an array and a
    launch before that one say which it is (`plugin.vllm_hooks.v2.decode_batch`).

    Unnecessary once the runner keeps them itself, and sends at once what it has to.
    """
    from vllm.v1.worker.gpu.input_batch import InputBatch
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    def preparing(stock: Any) -> Any:
        def prepare_inputs(
            self: Any, scheduler_output: Any, batch_req_state: Any, batch_desc: Any, num_active_loras: int
        ) -> Any:
            key, last = _key(self, batch_req_state, batch_desc), kept(self)
            if key is not None and last is not None and last.attention is not None and key == last.key:
                return next_batch(self, last, scheduler_output.has_structured_output_requests)
            setattr(self.input_buffers, _KEPT, None)  # should it fail half way
            if _is_ours(self) and replays(batch_desc) and all_decode(self, batch_req_state):
                batch, attention = _decode_batch(self, scheduler_output, batch_req_state, batch_desc)
                setattr(self.input_buffers, _KEPT, Kept(key, batch, attention, batch))
            else:
                batch = stock(self, scheduler_output, batch_req_state, batch_desc, num_active_loras)
                setattr(self.input_buffers, _KEPT, Kept(key, batch))
            return batch

        return prepare_inputs

    def preparing_attention(stock: Any) -> Any:
        def prepare_attn(self: Any, input_batch: Any) -> Any:
            last = kept(self)
            if last is not None and input_batch is last.latest:  # it was done with the batch
                return last.attention
            found = stock(self, input_batch)
            if last is not None and input_batch is last.batch:
                last.attention = found
                if last.key is not None and _COMPILED not in self.__dict__:
                    self.__dict__[_COMPILED] = True
                    place_of(self).write(input_batch)  # the same again
                    _write_inputs(self, input_batch)
            return found

        return prepare_attn

    def making(stock: Any) -> Any:
        def make_dummy(num_reqs: int, num_tokens: int, input_buffers: Any, *args: Any, **kwargs: Any) -> Any:
            setattr(input_buffers, _KEPT, None)  # it writes bounds of its own there
            return stock(num_reqs, num_tokens, input_buffers, *args, **kwargs)

        return make_dummy

    parameters = ("self", "scheduler_output", "batch_req_state", "batch_desc", "num_active_loras")
    replace(GPUModelRunner, "prepare_inputs", parameters, preparing)
    replace(GPUModelRunner, "prepare_attn", ("self", "input_batch"), preparing_attention)
    parameters = ("num_reqs", "num_tokens", "input_buffers", "max_query_len", "is_padding")
    replace(InputBatch, "make_dummy", parameters, making)


def kept(runner: Any) -> Kept | None:
    """What stands in the runner's input buffers, unless that is a dummy batch."""
    return getattr(runner.input_buffers, _KEPT, None)


def replays(batch_desc: Any) -> bool:
    """Whether a step is a graph's replay and nothing else."""
    from vllm.config.compilation import CUDAGraphMode

    return bool(batch_desc.cg_mode == CUDAGraphMode.FULL and batch_desc.num_ubatches == 1)


def _is_ours(runner: Any) -> bool:
    """Whether a batch's tensors follow from its requests, and how many tokens each brings."""
    return (
        cross_kv_before_decoder(runner)
        and runner.adaptive_verification is None
        and runner.pcp_manager is None
        and runner.dcp_size == 1
    )


def _decode_batch(runner: Any, output: Any, state: Any, desc: Any) -> tuple[Any, Any]:
    """A batch that `all_decode`, and what vLLM's `prepare_attn` would give for it; all tensors are being written."""
    place, tables = place_of(runner), runner.block_tables
    batch = place.batch(output, state, desc)
    place.write(batch)
    _write_inputs(runner, batch)
    attention = (
        tuple(table[: batch.num_reqs_after_padding] for table in tables.input_block_tables),
        tables.slot_mappings[:, : batch.num_tokens_after_padding],
    )
    return batch, attention


def _key(runner: Any, state: Any, batch_desc: Any) -> tuple[Any, ...] | None:
    """What a batch's tensors follow from, if that is all; None for steps with prefills and for other models."""
    if state.has_prefill or not _is_ours(runner):
        return None
    drafts = state.num_draft_tokens_np
    return (
        batch_desc,
        runner.block_tables,
        tuple(state.req_ids),
        state.idx_mapping_np.tobytes(),
        state.num_scheduled_tokens.tobytes(),
        None if drafts is None else drafts.tobytes(),
    )


def next_batch(runner: Any, last: Kept, has_structured_output: bool) -> Any:
    """The batch of the step after `last`, with the same requests in the same slots and as many tokens of each. Its
    tensors, and those of `last.attention`, are being written."""
    batch, requests = last.batch, runner.req_states
    _write_inputs(runner, batch)
    computed = requests.num_computed_tokens_np[batch.idx_mapping_np]
    longest = np.zeros(batch.num_reqs_after_padding, dtype=np.int32)
    np.add(computed, batch.num_scheduled_tokens, out=longest[: batch.num_reqs])
    made = object.__new__(type(batch))  # dataclasses.replace asks for every field, and gives it by name
    made.__dict__.update(
        batch.__dict__,
        seq_lens_cpu_upper_bound=torch.from_numpy(longest),
        num_computed_tokens_np=computed,
        has_structured_output_reqs=has_structured_output,
    )
    last.latest = made
    return made


def _write_inputs(runner: Any, batch: Any) -> None:
    """Write positions, lengths, input ids, slots and block tables of a batch whose bounds are there."""
    buffers, requests, tables = runner.input_buffers, runner.req_states, runner.block_tables
    triton_step.step_inputs(
        batch.idx_mapping,
        batch.query_start_loc,
        batch.cu_num_logits,
        requests.num_computed_tokens.gpu,
        requests.prefill_len.gpu,
        requests.all_token_ids.gpu,
        requests.last_sampled_tokens,
        requests.draft_tokens,
        tables.block_table_ptrs,
        tables.block_table_strides,
        tables.num_blocks.gpu,
        tables.block_sizes_tensor,
        tables.slot_mapping_enabled,
        buffers.input_ids,
        buffers.positions,
        buffers.seq_lens,
        tables.slot_mappings,
        tables.input_block_table_ptrs,
        batch.num_reqs_after_padding,
    )
