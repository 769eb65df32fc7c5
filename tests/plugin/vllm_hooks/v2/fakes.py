"""vLLM's V2 runner on the CPU: its own functions and states over a fake of the rest, plain loops for its kernels."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu import buffer_utils, model_runner
from vllm.v1.worker.gpu.async_utils import StepTimingCollector
from vllm.v1.worker.gpu.block_table import BlockTables
from vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor
from vllm.v1.worker.gpu.ec_connector import NO_OP_EC_CONNECTOR
from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers
from vllm.v1.worker.gpu.kv_connector import NO_OP_KV_CONNECTOR
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.states import RequestState

from plugin.verifier import triton_step
from plugin.vllm_hooks.v2.batches import tensors_of_decode_batches
from plugin.vllm_hooks.v2.requests import new_requests_in_one_launch
from plugin.vllm_hooks.v2.runner import (
    compiled_decoder_beside_encoder_inputs,
    encoder_passes_in_parts,
    first_token_as_decode,
)
from plugin.vllm_hooks.v2.sampler_parameters import parameters_where_they_are_read
from tests.plugin.verifier.batch_cases import naive_write_batch, naive_write_entries
from tests.plugin.verifier.step_cases import naive_step_inputs

K, SLOTS, TOKENS, LENGTH = 3, 6, 200, 120
BLOCK_SIZES = (4, 8)
PAD = triton_step.PAD_SLOT_ID
LAYERS = (["self.0", "self.1"], ["cross.0"])
CPU = torch.device("cpu")

METHODS = (
    "execute_model", "update_pp_decode_requests", "finish_requests", "_remove_request", "free_states", "add_requests",
    "update_requests", "prepare_inputs", "prepare_attn", "_merge_ec_connector_no_forward",
)  # fmt: skip


def positions_and_lengths(idx_mapping, query_start_loc, computed, positions, seq_lens):
    """vLLM's kernel of this name, request by request; so are those below."""
    seq_lens[len(idx_mapping) :] = 0
    for row, slot in enumerate(idx_mapping.tolist()):
        begin, end = query_start_loc[row : row + 2].tolist()
        positions[begin:end] = computed[slot] + torch.arange(end - begin)
        seq_lens[row] = computed[slot] + end - begin


def sampled_and_drafts(
    input_ids, idx_mapping, sampled, query_start_loc, seq_lens, prefill_len, drafts, cu_logits, num_logits, _=1
):  # fmt: skip
    indices = torch.empty(num_logits, dtype=torch.int64)
    for row, slot in enumerate(idx_mapping.tolist()):
        begin, end = cu_logits[row : row + 2].tolist()
        count, last = end - begin, int(query_start_loc[row + 1])
        indices[begin:end] = torch.arange(last - count, last)
        if seq_lens[row] > prefill_len[slot]:
            if seq_lens[row] - count >= prefill_len[slot]:
                input_ids[last - count] = sampled[slot, 0]
            input_ids[last - count + 1 : last] = drafts[slot, : count - 1]
    return indices


def prompt_tokens(input_ids, _next, idx_mapping, query_start_loc, all_token_ids, prefill_len, computed):
    for row, slot in enumerate(idx_mapping.tolist()):
        begin, end = query_start_loc[row : row + 2].tolist()
        if computed[slot] < prefill_len[slot]:
            input_ids[begin:end] = all_token_ids[slot, computed[slot] : computed[slot] + end - begin]


def expanded(idx_mapping, total, cu_logits, _):
    counts = (cu_logits[1:] - cu_logits[:-1]).long()
    local = torch.cat([torch.arange(int(count), dtype=torch.int32) for count in counts])
    return idx_mapping.repeat_interleave(counts, output_size=total), local


def gather_block_tables(self, idx_mapping, num_reqs_padded):
    for group, (own, out) in enumerate(zip(self.block_tables, self.input_block_tables, strict=True)):
        out[len(idx_mapping) : num_reqs_padded] = 0
        for row, slot in enumerate(idx_mapping.tolist()):
            held = int(self.num_blocks.gpu[group, slot])
            out[row, :held] = own.gpu[slot, :held]
    return tuple(table[:num_reqs_padded] for table in self.input_block_tables)


def compute_slot_mappings(self, idx_mapping, query_start_loc, positions, num_tokens_padded):
    self.slot_mappings[:, query_start_loc[len(idx_mapping)] :] = PAD
    for group, size in enumerate(self.block_sizes):
        for row, slot in enumerate(idx_mapping.tolist()):
            begin, end = query_start_loc[row : row + 2].tolist()
            at = positions[begin:end]
            self.slot_mappings[group, begin:end] = (
                self.block_tables[group].gpu[slot, at // size] * size + at % size
            )
    return self.slot_mappings[:, :num_tokens_padded]


def apply_write(self):
    begin = 0
    writes = (self._staged_write_indices, self._staged_write_starts, self._staged_write_cu_lens)
    for index, start, end in zip(*writes, strict=True):
        values = torch.tensor(self._staged_write_contents[begin:end], dtype=self.dtype)
        self.gpu.view(self.num_rows, -1)[index, start : start + len(values)] = values
        begin = end
    self.clear_staged_writes()


def apply_staged_writes(self):
    for table in self.block_tables:
        apply_write(table)
    self.num_blocks.copy_to_uva()


def without_kernels(monkeypatch):
    """Puts the loops in the kernels' places."""
    monkeypatch.setattr(buffer_utils, "is_uva_available", lambda: False)
    monkeypatch.setattr(model_runner, "prepare_pos_seq_lens", positions_and_lengths)
    monkeypatch.setattr(model_runner, "combine_sampled_and_draft_tokens", sampled_and_drafts)
    monkeypatch.setattr(model_runner, "prepare_prefill_inputs", prompt_tokens)
    monkeypatch.setattr(model_runner, "expand_idx_mapping", expanded)
    monkeypatch.setattr(model_runner, "set_forward_context", lambda *_, **__: nullcontext())
    monkeypatch.setattr(model_runner, "dispatch_cg_and_sync_dp", dispatch)
    monkeypatch.setattr(StagedWriteTensor, "apply_write", apply_write)
    for function in (gather_block_tables, compute_slot_mappings, apply_staged_writes):
        monkeypatch.setattr(BlockTables, function.__name__, function)
    monkeypatch.setattr(triton_step, "step_inputs", naive_step_inputs)
    monkeypatch.setattr(triton_step, "write_entries", naive_write_entries)
    monkeypatch.setattr(triton_step, "write_batch", naive_write_batch)


def dispatch(manager, num_reqs, num_tokens, uniform, *_, max_query_len=None, **__):
    """A graph for as many requests, or one for all slots, where every request brings as many tokens, or where none
    brings more than a decode step's."""
    rows, longest = SLOTS if manager.padded else num_reqs, max_query_len or manager.longest_query
    if uniform is not None and uniform <= 1 + K:
        return BatchExecutionDescriptor(CUDAGraphMode.FULL, rows * uniform, rows, uniform), None
    if longest is None or longest > 1 + K:
        return BatchExecutionDescriptor(CUDAGraphMode.NONE, num_tokens, num_reqs), None
    tokens = rows * (1 + K) if manager.padded else num_tokens
    return BatchExecutionDescriptor(CUDAGraphMode.FULL, tokens, rows, max_query_len=1 + K), None


class ModelState:
    """Ours, of which nothing is looked at but what the hooks read."""

    num_new_sampled_tokens_per_step = 1

    def __init__(self, ours):
        if ours:
            self.cross_kv_before_decoder = True
        self.encoder_states = SimpleNamespace(advance=lambda work: None)
        self.encoder_lens = buffer_utils.UvaBackedTensor(SLOTS, torch.int32)
        self.encoder_lens.np[:] = np.arange(20, 20 + SLOTS)
        self.encoder_lens.copy_to_uva()
        self.encoder_seq_lens_gpu, self.gathered = torch.full((SLOTS,), -7, dtype=torch.int32), None

    def add_request(self, *_): ...
    def begin_prompts(self, *_): ...
    def remove_request(self, *_): ...
    def apply_staged_writes(self): ...
    def preprocess_state(self, *_): ...
    def prepare_inputs_embeds(self, *_): ...

    def prepare_attn(self, batch, mode, *_, **__):
        return {} if mode == CUDAGraphMode.FULL else {"layer": "metadata"}

    def prepare_inputs(self, batch, _):
        self.batch = batch
        return {}


class Graphs:
    """Counts what is replayed."""

    longest_query = None

    def __init__(self, padded):
        self.padded, self.replayed = padded, []
        self.hidden_states, self.taps = torch.zeros(TOKENS, 2), [torch.zeros(TOKENS, 2)] * 2

    def run_fullgraph(self, desc):
        self.replayed.append(desc)
        return self.hidden_states[: desc.num_tokens], [tap[: desc.num_tokens] for tap in self.taps]


def runner(*, hooked=True, ours=True, padded=False) -> Any:
    """A runner as vLLM's is once it has started; with its functions as vLLM has them unless `hooked`."""
    found = {name: getattr(GPUModelRunner, name) for name in METHODS}
    if not hooked:
        found = {name: inspect.unwrap(function) for name, function in found.items()}
    # Which graph a step gets is another hook's matter.
    found["gather_batch_req_state"] = GPUModelRunner.gather_batch_req_state
    made: Any = type("Runner", (), found)()
    tables = BlockTables([*BLOCK_SIZES], SLOTS, TOKENS, [LENGTH // size + 2 for size in BLOCK_SIZES], CPU)
    none = (
        "pp_handler", "pooling_runner", "aux_output_connector", "adaptive_verification", "pcp_manager", "lora_config",
        "rejection_sampler", "batch_sharder", "fast_prefill", "ubatch_runner", "parallel_config", "kv_block_zeroer",
        "execute_model_state", "speculator",
    )  # fmt: skip
    graphs = Graphs(padded)
    vars(made).update(
        dict.fromkeys(none), device=CPU, max_num_reqs=SLOTS, decode_query_len=1 + K, use_pp=False, dcp_size=1,
        dp_size=1, dp_rank=0, is_first_pp_rank=True, is_last_pp_rank=True, is_encoder_decoder=hooked,
        uses_inputs_embeds=True, supports_mm_inputs=True, use_aux_hidden_state_outputs=True, attn_groups=[],
        block_tables=tables, input_buffers=InputBuffers(SLOTS, TOKENS, CPU), model_state=ModelState(ours),
        req_states=RequestState(SLOTS, LENGTH, TOKENS, K, 100, CPU), cudagraph_manager=graphs,
        model=lambda **_: (graphs.hidden_states, graphs.taps), vllm_config=None,
        model_config=SimpleNamespace(rswa_window=None), kv_connector=NO_OP_KV_CONNECTOR,
        observability_config=SimpleNamespace(cudagraph_metrics=False), ec_connector=NO_OP_EC_CONNECTOR,
        encoder_cache=SimpleNamespace(
            add_request=lambda *_: None, remove_request=lambda *_: None, free_encoder_cache=lambda *_: None
        ),
        kv_cache_config=SimpleNamespace(
            kv_cache_groups=[SimpleNamespace(layer_names=names) for names in LAYERS]
        ),
        lora_state=SimpleNamespace(add_request=lambda *_: None, remove_request=lambda *_: None),
        sampler=SimpleNamespace(add_request=lambda *_: None, apply_staged_writes=lambda: None),
        prompt_logprobs_worker=SimpleNamespace(add_request=lambda *_: None, remove_request=lambda *_: None),
        eplb=SimpleNamespace(state=None, prepare_forward=lambda *_: None), step_timing=StepTimingCollector(),
    )  # fmt: skip
    return made


def same_batch(ours, stock):
    for field in fields(InputBatch):
        one, other = getattr(ours, field.name), getattr(stock, field.name)
        if field.name == "is_padding":  # read by experts, of which the model has none
            assert one.shape == other.shape
        elif isinstance(other, np.ndarray | torch.Tensor):
            assert one.dtype == other.dtype and one.tolist() == other.tolist(), field.name
        else:
            assert one == other, field.name


def same_buffers(ours, stock):
    """All that a graph reads, and what the runner keeps by slot."""
    for name in ("input_ids", "positions", "seq_lens", "query_start_loc"):
        one, other = (getattr(each.input_buffers, name) for each in (ours, stock))
        assert torch.equal(one, other), name
    for one, other in zip(*(each.block_tables.input_block_tables for each in (ours, stock)), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(*(each.block_tables.block_tables for each in (ours, stock)), strict=True):
        assert torch.equal(one.gpu, other.gpu)
    assert torch.equal(ours.block_tables.slot_mappings, stock.block_tables.slot_mappings)
    assert torch.equal(ours.block_tables.num_blocks.gpu, stock.block_tables.num_blocks.gpu)
    for name in ("num_computed_tokens", "total_len", "all_token_ids", "prompt_len", "prefill_len"):
        one, other = (getattr(each.req_states, name).gpu for each in (ours, stock))
        assert torch.equal(one, other), name
    for name in ("num_computed_tokens_np", "num_computed_prefill_tokens", "max_seq_len"):
        one, other = (getattr(each.req_states, name).tolist() for each in (ours, stock))
        assert one == other, name


def same_state(ours, stock):
    """vLLM's `ExecuteModelState` of two runners, that is None behind a step without tokens."""
    if stock is None:
        assert ours is None
        return
    same_batch(ours.input_batch, stock.input_batch)
    assert ours.hidden_states.shape == stock.hidden_states.shape
    assert [tap.shape for tap in ours.aux_hidden_states] == [tap.shape for tap in stock.aux_hidden_states]
    mappings = [{k: v.tolist() for k, v in s.slot_mappings_by_layer.items()} for s in (ours, stock)]
    assert mappings[0] == mappings[1]
    compared = {"input_batch", "hidden_states", "aux_hidden_states", "slot_mappings_by_layer"}
    for name in set(type(stock)._fields) - compared:
        assert getattr(ours, name) == getattr(stock, name), name


def hooked_decode_batches(monkeypatch):
    """The hooks of a step up to its batch, over `without_kernels`."""
    without_kernels(monkeypatch)
    compiled_decoder_beside_encoder_inputs()
    encoder_passes_in_parts()
    first_token_as_decode()
    parameters_where_they_are_read()
    new_requests_in_one_launch()
    tensors_of_decode_batches()
