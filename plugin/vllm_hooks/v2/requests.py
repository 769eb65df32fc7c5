"""Hooks into what the V2 model runner does where a request is added."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from plugin.verifier import triton_step
from plugin.vllm_hooks.hook import replace
from plugin.vllm_hooks.v2.runner import cross_kv_before_decoder

_ENTRIES = "_t5gemma2_entries"
"""Attribute of the runner's block tables and of its request states: their `Entries`."""

WRITES_A_STEP = 2


@dataclass(slots=True)
class Columns:
    """Entries to write. A long prompt brings hundreds of blocks: column by column they take half the time of tuples.

    Attributes:
        tables: of each entry, its table's place among the cache groups, and behind those.
        slots, places: its row, and its place there.
        values: itself.
    """

    tables: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    values: list[int] = field(default_factory=list)

    def add(self, table: int, slot: int, first: int, values: Sequence[int]) -> None:
        """Values for places from `first` on."""
        self.tables += [table] * len(values)
        self.slots += [slot] * len(values)
        self.places += range(first, first + len(values))
        self.values += values


class Entries:
    """Entries of the block tables and of what the runner keeps by request, written in one launch.

    vLLM stages them, tensor by tensor, and writes them with three to five arrays and a launch for each tensor.
    """

    def __init__(self, tables: Any, states: Any) -> None:
        """`tables`, `states`: vLLM's `BlockTables` and `RequestState` of a runner."""
        from vllm.v1.worker.gpu.buffer_utils import UvaBufferPool

        self._staged = [
            *tables.block_tables,
            states.total_len,
            states.num_computed_tokens,
            states.all_token_ids,
        ]
        tensors = [each.gpu for each in self._staged]
        if any(each.dtype != torch.int32 for each in tensors):
            raise TypeError(f"entries of {[str(each.dtype) for each in tensors]}, not int32")
        self._addresses = tables._make_ptr_tensor(tensors)
        strides = [each.stride(0) for each in tensors]
        self._strides = torch.tensor(strides, dtype=torch.int64, device=tables.device)
        steps = tables.num_blocks.pool.max_concurrency
        # A request may bring all of its blocks at once. The pool would grow in the middle of a step, by pinned memory.
        size = max(tables.max_num_reqs, sum(table.shape[1] for table in tables.input_block_tables))
        self._sent = UvaBufferPool((size, 4), torch.int32, WRITES_A_STEP * steps)

    def write(self, entries: "Columns") -> None:
        if entries.values:
            columns = (entries.tables, entries.slots, entries.places, entries.values)
            sent = np.array(columns, dtype=np.int32).T
            triton_step.write_entries(self._sent.copy_to_uva(sent), self._addresses, self._strides)

    def write_staged(self) -> None:
        """What vLLM has staged in the tensors, which then hold nothing staged."""
        entries = Columns()
        for i, tensor in enumerate(self._staged):
            writes = (tensor._staged_write_indices, tensor._staged_write_starts, tensor._staged_write_cu_lens)
            begin = 0
            for slot, start, end in zip(*writes, strict=True):
                entries.add(i, slot, start, tensor._staged_write_contents[begin:end])
                begin = end
            if begin:
                tensor.clear_staged_writes()
        self.write(entries)


def entries_of(runner: Any) -> Entries:
    """The runner's, made anew where its block tables are."""
    tables, states = runner.block_tables, runner.req_states
    found: Entries | None = tables.__dict__.get(_ENTRIES)
    if found is None:
        found = tables.__dict__[_ENTRIES] = states.__dict__[_ENTRIES] = Entries(tables, states)
    return found


def append_blocks(runner: Any, slots: list[int], new_block_ids: list[tuple[list[int], ...] | None]) -> None:
    """What vLLM's `append_block_ids` and `apply_staged_writes` do with a step's new blocks by request and cache group,
    where nothing else is staged.

    Raises:
        RuntimeError: a request has no room for its blocks.
    """
    entries = Columns()
    tables = runner.block_tables
    held = tables.num_blocks.np
    for slot, groups in zip(slots, new_block_ids, strict=True):
        for group, blocks in enumerate(groups or ()):
            if not blocks:
                continue
            start = int(held[group, slot])
            end = start + len(blocks)
            if end > tables.input_block_tables[group].shape[1]:
                raise RuntimeError(f"{end} blocks for the request in slot {slot}, cache group {group}")
            entries.add(group, slot, start, blocks)
            held[group, slot] = end
    if entries.values:
        entries_of(runner).write(entries)
        tables.num_blocks.copy_to_uva()


def new_requests_in_one_launch() -> None:
    """For each request the V2 runner blanks a row of draft tokens, a launch; then it writes the requests' tokens, two
    numbers of each, and their blocks, in four launches with thirteen arrays, two of them through fresh pinned memory.
    Here all of it is an array and a launch (`Entries`), and no row is blanked: nobody verifies drafts of a request that
    were not drafted for it.

    Unnecessary once the runner writes what a request brings at once.
    """
    from vllm.v1.worker.gpu.block_table import BlockTables
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner
    from vllm.v1.worker.gpu.states import RequestState

    def adding(stock: Any) -> Any:
        def add_requests(self: Any, scheduler_output: Any) -> None:
            if cross_kv_before_decoder(self):
                entries_of(self)
            stock(self, scheduler_output)

        return add_requests

    def adding_state(stock: Any) -> Any:
        def add_request(self: Any, *args: Any, **kwargs: Any) -> None:
            if _ENTRIES not in self.__dict__:
                stock(self, *args, **kwargs)
                return
            drafts, self.draft_tokens = self.draft_tokens, torch.empty(self.max_num_reqs, 0)
            try:
                stock(self, *args, **kwargs)
            finally:
                self.draft_tokens = drafts

        return add_request

    def applying(stock: Any) -> Any:
        def apply_staged_writes(self: Any) -> None:
            entries = self.__dict__.get(_ENTRIES)
            if entries is None:
                stock(self)
                return
            self.prompt_len.copy_to_uva()
            self.prefill_len.copy_to_uva()
            entries.write_staged()

        return apply_staged_writes

    def applying_blocks(stock: Any) -> Any:
        def apply_staged_writes(self: Any) -> None:
            entries = self.__dict__.get(_ENTRIES)
            if entries is None:
                stock(self)
                return
            entries.write_staged()
            self.num_blocks.copy_to_uva()

        return apply_staged_writes

    replace(GPUModelRunner, "add_requests", ("self", "scheduler_output"), adding)
    parameters = ("self", "req_id", "prompt_len", "all_token_ids", "num_computed_tokens", "max_tokens")
    replace(RequestState, "add_request", parameters, adding_state)
    replace(RequestState, "apply_staged_writes", ("self",), applying)
    replace(BlockTables, "apply_staged_writes", ("self",), applying_blocks)
