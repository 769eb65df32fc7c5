"""A batch like the last one takes its tensors: every field equals what vLLM would have made anew."""

from inspect import unwrap
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu import model_runner
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.model_runner import BatchReqState, GPUModelRunner

from plugin.verifier import triton_step
from plugin.vllm_hooks.v2 import batches
from tests.plugin.verifier.batch_cases import naive_write_batch
from tests.plugin.vllm_hooks.v2.fakes import (
    SLOTS,
    K,
    runner,
    same_batch,
    same_buffers,
    without_kernels,
)


@pytest.fixture
def sent(monkeypatch):
    """What is copied to the device."""
    found = []
    without_kernels(monkeypatch)
    stock = model_runner.async_tensor_h2d

    def counted(data, **kwargs):
        found.append(data)
        return stock(data, **kwargs)

    def batch(given, *others):
        found.append(given)
        naive_write_batch(given, *others)

    monkeypatch.setattr(model_runner, "async_tensor_h2d", counted)
    monkeypatch.setattr(triton_step, "write_batch", batch)
    batches.tensors_of_decode_batches()
    return found


def started(**kinds):
    """A runner whose request slots are all taken, by requests that computed nothing and were admitted with a token."""
    made = runner(**kinds)
    torch.manual_seed(1)
    made.req_states.prefill_len.np[:] = 1
    made.req_states.prefill_len.copy_to_uva()
    for group, table in enumerate(made.block_tables.block_tables):
        table.gpu.random_(1, 999)
        made.block_tables.num_blocks.np[group] = 2
    made.block_tables.num_blocks.copy_to_uva()
    return made


def step(slots, drafts, step_number, has_prefill=False, graph=None, mode=CUDAGraphMode.FULL):
    """State, descriptor and scheduler's output of a step of the requests in `slots`, with `drafts` tokens each."""
    count, tokens = len(slots), np.array(drafts, np.int32) + 1
    state = BatchReqState(
        req_ids=[f"r{slot}" for slot in slots],
        num_scheduled_tokens=tokens,
        num_tokens=int(tokens.sum()),
        num_draft_tokens_np=np.array(drafts, np.int32) if any(drafts) else None,
        idx_mapping_np=np.array(slots),
        prefill_len_np=np.ones(count, np.int32),
        num_computed_prefill_tokens_np=np.ones(count, np.int32),
        is_prefilling_np=np.full(count, has_prefill),
        max_seq_len_np=None,
        has_prefill=has_prefill,
        prefill_runs_as_decode_np=None,
        decode_graph_eligible=True,
    )
    desc = BatchExecutionDescriptor(mode, graph or int(tokens.sum()), num_reqs=SLOTS if graph else count)
    scheduled = SimpleNamespace(
        scheduled_spec_decode_tokens={f"r{s}": [-1] * d for s, d in zip(slots, drafts, strict=True) if d},
        has_structured_output_requests=bool(step_number % 2),
    )
    return scheduled, state, desc, 0


def prepare(made, args):
    batch = GPUModelRunner.prepare_inputs(made, *args)
    return batch, GPUModelRunner.prepare_attn(made, batch)


def advance(runners, generator):
    """What the device and the scheduler do between two steps: requests grow, and so do two of their block tables."""
    taken = torch.randint(1, 2 + K, (SLOTS,), generator=generator, dtype=torch.int32)
    ids = torch.randint(5, 99, (SLOTS, 1 + K), generator=generator)
    for each in runners:
        states, tables = each.req_states, each.block_tables
        states.num_computed_tokens.gpu += taken
        states.num_computed_tokens_np += 1 + K
        states.last_sampled_tokens.copy_(ids[:, :1])
        states.draft_tokens.copy_(ids[:, 1:])
        tables.append_block_ids(2, ([int(ids[0, 0])], []), overwrite=False)
        tables.append_block_ids(5, ([], [int(ids[0, 1])]), overwrite=False)
        tables.apply_staged_writes()


STEPS = [
    ([2, 0], [0, 0]), ([2, 0], [0, 0]), ([2, 0], [0, 0]),  # no drafts
    ([2, 0], [K, K]), ([2, 0], [K, K]), ([2, 0], [K, 1]), ([2, 0], [K, 1]),
    ([0, 2], [K, K]), ([0, 2], [K, K]),  # the same requests in another order
    ([0, 2, 5], [K, K, K]), ([0, 2, 5], [K, K, K]), ([5], [K]), ([5], [K]),
]  # fmt: skip
UNCHANGED = [1, 2, 4, 6, 8, 10, 12]


@pytest.mark.parametrize("mode", [CUDAGraphMode.FULL, CUDAGraphMode.NONE], ids=["replayed", "eager"])
@pytest.mark.parametrize("graph", [None, 24], ids=["as large as the batch", "padded graph"])
def test_every_field_is_what_vllm_makes_anew_and_nothing_is_sent_for_an_unchanged_batch(sent, graph, mode):
    generator = torch.Generator().manual_seed(0)
    hooked, plain = started(), started()
    quiet = []
    for number, (slots, drafts) in enumerate(STEPS):
        advance((hooked, plain), generator)
        args = step(slots, drafts, number, graph=graph, mode=mode)
        sent.clear()
        ours, attention = prepare(hooked, args)
        quiet += [] if sent else [number]
        stock = unwrap(GPUModelRunner.prepare_inputs)(plain, *args)
        tables, mappings = unwrap(GPUModelRunner.prepare_attn)(plain, stock)
        same_batch(ours, stock)
        same_buffers(hooked, plain)
        assert [table.tolist() for table in attention[0]] == [table.tolist() for table in tables]
        assert attention[1].tolist() == mappings.tolist()
        for buffer, view in zip(hooked.block_tables.input_block_tables, attention[0], strict=True):
            assert view.data_ptr() == buffer.data_ptr()
        for each in (hooked, plain):  # the draft writes its own slots there
            each.block_tables.slot_mappings[0].fill_(7)
    assert quiet == UNCHANGED


def test_the_programs_are_launched_once_before_they_are_needed(sent, monkeypatch):
    """In vLLM's warm-up, whose decode steps do not come again, and replay no graphs."""
    made, launched, eager = started(), [], {"mode": CUDAGraphMode.NONE}
    for name in ("step_inputs", "write_batch"):
        stock = getattr(triton_step, name)
        monkeypatch.setattr(
            triton_step, name, lambda *args, name=name, stock=stock: launched.append(name) or stock(*args)
        )
    prepare(made, step([1], [0], 0, has_prefill=True, **eager))
    assert launched == []
    prepare(made, step([1], [0], 0, **eager))
    assert launched == ["write_batch", "step_inputs"]
    batch, _ = prepare(made, step([1, 2], [0, 0], 0, **eager))
    assert len(launched) == 2
    assert batch.query_start_loc.tolist() == [0, 1, 2]


def test_control_an_unchanged_batch_with_another_key_has_the_wrong_tensors(sent, monkeypatch):
    hooked, plain = started(), started()
    monkeypatch.setattr(batches, "_key", lambda *_: (1,))
    for number, slots in enumerate(([2, 0], [0, 2])):
        ours, _ = prepare(hooked, step(slots, [K, 1], number))
        stock = unwrap(GPUModelRunner.prepare_inputs)(plain, *step(slots, [K, 1], number))
    with pytest.raises(AssertionError, match="req_ids"):
        same_batch(ours, stock)


def test_a_dummy_batch_and_a_prefill_between_two_equal_steps_have_them_sent_again(sent):
    made = started()
    args = step([1, 3], [K, K], 0)
    prepare(made, args)
    want = made.input_buffers.query_start_loc.clone()
    InputBatch.make_dummy(3, 7, made.input_buffers)
    sent.clear()
    prepare(made, args)
    assert sent
    assert torch.equal(made.input_buffers.query_start_loc, want)
    prepare(made, step([1, 3], [K, K], 0, has_prefill=True))
    sent.clear()
    prepare(made, args)
    assert sent


def test_a_batch_whose_attention_was_not_prepared_is_made_anew(sent):
    """As behind a step that failed half way."""
    made = started()
    args = step([1, 3], [K, K], 0, mode=CUDAGraphMode.NONE)
    GPUModelRunner.prepare_inputs(made, *args)
    sent.clear()
    prepare(made, args)
    assert sent


def test_other_models_and_what_changes_the_tensors_on_the_device_stay_with_vllm(sent):
    made = started(ours=False)
    prepare(made, step([1], [0], 0))
    sent.clear()
    prepare(made, step([1], [0], 0))
    assert sent
    for name, value in (("adaptive_verification", object()), ("pcp_manager", object()), ("dcp_size", 2)):
        made = started()
        setattr(made, name, value)
        assert batches._key(made, step([1], [0], 0)[1], None) is None, name
    made = started()
    state = step([1], [0], 0)[1]
    key = batches._key(made, state, None)
    made.block_tables = runner().block_tables  # the cache was allocated anew
    assert batches._key(made, state, None) != key
