"""A step's batch that is another than the last one's: all that the device has to know of it in two launches."""

from typing import Any

import numpy as np
import torch

from plugin.verifier import triton_step

_PLACE = "_t5gemma2_place"
"""Attribute of a runner: its `BatchPlace`."""


class BatchPlace:
    """Where a batch of decode rows stands on the device: the same memory for every batch, under new views.

    A request that joins, leaves, or brings another number of tokens makes another batch of the step. vLLM then sends
    slots and bounds one by one, each through fresh pinned memory, derives what follows from them in launches of their
    own, and whoever else has to know the slots copies them: the graph that samples, the draft's graph, the encoder's
    lengths. Here one array says which requests a batch has and how many tokens each, and one launch writes all of that.
    """

    def __init__(self, runner: Any) -> None:
        from vllm.v1.worker.gpu.buffer_utils import UvaBufferPool

        self._runner, self._longest = runner, runner.decode_query_len
        requests, tokens = runner.max_num_reqs, runner.max_num_reqs * runner.decode_query_len
        self._slots = torch.full((requests,), -1, dtype=torch.int64, device=runner.device)
        self._nobodys = torch.empty_like(self._slots)
        self._expanded = torch.zeros(tokens, dtype=torch.int64, device=runner.device)
        self._offsets = torch.zeros(tokens, dtype=torch.int32, device=runner.device)
        self._rows = torch.arange(tokens, device=runner.device)
        self._given = np.empty(2 * requests + 1, dtype=np.int32)
        self._sent = UvaBufferPool(len(self._given), torch.int32)

    def batch(self, output: Any, state: Any, desc: Any) -> Any:
        """vLLM's `InputBatch` of a step that is `all_decode`, whose tensors `write` will fill.

        Args:
            output: the scheduler's.
            state: vLLM's `BatchReqState`.
            desc: the graph that the step replays.
        """
        from vllm.v1.worker.gpu.input_batch import InputBatch

        buffers, states = self._runner.input_buffers, self._runner.req_states
        count, num_tokens, slots = len(state.req_ids), state.num_tokens, state.idx_mapping_np
        rows, padded = desc.num_reqs or count, max(num_tokens, desc.num_tokens)
        drafts = state.num_draft_tokens_np if output.scheduled_spec_decode_tokens else None
        begins = np.full(rows + 1, num_tokens, dtype=np.int32)
        begins[0] = 0
        np.cumsum(state.num_scheduled_tokens, out=begins[1 : count + 1])
        computed = states.num_computed_tokens_np[slots]
        longest = np.zeros(rows, dtype=np.int32)
        np.add(computed, state.num_scheduled_tokens, out=longest[:count])
        mapping, starts = self._slots[:count], buffers.query_start_loc
        return InputBatch(
            req_ids=state.req_ids,
            num_reqs=count,
            num_reqs_after_padding=rows,
            idx_mapping=mapping,
            idx_mapping_np=slots,
            expanded_idx_mapping=mapping if drafts is None else self._expanded[:num_tokens],
            expanded_local_pos=self._offsets[:num_tokens],
            num_scheduled_tokens=state.num_scheduled_tokens,
            num_tokens=num_tokens,
            num_tokens_after_padding=padded,
            num_draft_tokens=num_tokens - count,
            num_draft_tokens_per_req=drafts,
            query_start_loc=starts[: rows + 1],
            query_start_loc_np=begins,
            seq_lens=buffers.seq_lens[:rows],
            seq_lens_cpu_upper_bound=torch.from_numpy(longest),
            dcp_local_seq_lens=None,
            num_computed_tokens_np=computed,
            prefill_len_np=state.prefill_len_np,
            num_computed_prefill_tokens_np=state.num_computed_prefill_tokens_np,
            is_prefilling_np=state.is_prefilling_np,
            has_prefill=state.has_prefill,
            decode_graph_eligible=state.decode_graph_eligible,
            input_ids=buffers.input_ids[:padded],
            positions=buffers.positions[:padded],
            is_padding=buffers.is_padding[:padded],  # not written: experts read it, of which there are none
            logits_indices=self._rows[:num_tokens],
            cu_num_logits=starts[: count + 1],
            cu_num_logits_np=begins[: count + 1],
            has_structured_output_reqs=output.has_structured_output_requests,
            prompt_lens=None,
            prefill_runs_as_decode_np=state.prefill_runs_as_decode_np,
        )

    def write(self, batch: Any) -> None:
        """Fill the tensors of `batch`, and all others that say whose a row is: those of the graph that samples, of the
        draft's graph, and the encoder's lengths."""
        runner, count = self._runner, batch.num_reqs
        slots, bounds = self._given[: runner.max_num_reqs], self._given[runner.max_num_reqs :]
        slots[:count], slots[count:] = batch.idx_mapping_np, -1
        bounds[: count + 1], bounds[count + 1 :] = batch.query_start_loc_np[: count + 1], batch.num_tokens
        sampling = getattr(runner.cudagraph_manager, "sampling", None)
        draft = runner.speculator if getattr(runner.speculator, "in_graph", False) else None
        is_plain = sampling is not None and sampling.is_plain(batch)
        triton_step.write_batch(
            self._sent.copy_to_uva(self._given),
            runner.model_state.encoder_lens.gpu,
            self._slots,
            runner.input_buffers.query_start_loc,
            self._expanded,
            self._offsets,
            runner.model_state.encoder_seq_lens_gpu,
            self._nobodys if sampling is None else sampling.slots,
            self._nobodys if draft is None else draft.idx_mapping,
            count,
            int(is_plain),
            self._longest,
        )
        runner.model_state.gathered = batch.idx_mapping
        if sampling is not None:
            sampling.stand_staged(batch.idx_mapping if is_plain else None)
        if draft is not None:
            draft.followed = batch.idx_mapping


def place_of(runner: Any) -> BatchPlace:
    """The runner's."""
    found: BatchPlace | None = runner.__dict__.get(_PLACE)
    if found is None:
        found = runner.__dict__[_PLACE] = BatchPlace(runner)
    return found


def all_decode(runner: Any, state: Any) -> bool:
    """Whether each request of a step brings one token and its drafts, all of them with logits. The token may be the one
    that a request is admitted with, or the last one of those.
    """
    drafts = state.num_draft_tokens_np
    if not state.decode_graph_eligible or state.num_tokens != len(state.req_ids) + (
        0 if drafts is None else int(drafts.sum())
    ):
        return False
    if runner.model_config.rswa_window is not None or runner.fast_prefill is not None:
        return False
    if not state.has_prefill:
        return True
    tokens, prefills = state.num_scheduled_tokens, state.is_prefilling_np
    ends = state.num_computed_prefill_tokens_np + tokens >= state.prefill_len_np
    return bool((ends & ((tokens == 1) | ~prefills)).all())
