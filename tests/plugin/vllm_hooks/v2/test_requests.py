"""What a request brings is written at once, and what it does not bring is not sent."""

import pytest
import torch
from vllm.v1.worker.gpu.model_runner import GPUModelRunner

from plugin.verifier import triton_step
from plugin.vllm_hooks.v2 import requests
from tests.plugin.vllm_hooks.v2.fakes import runner, same_buffers, without_kernels
from tests.plugin.vllm_hooks.v2.schedule import Scheduling


@pytest.fixture
def launched(monkeypatch):
    """The hooks, on the CPU, and how many entries each launch had."""
    without_kernels(monkeypatch)
    requests.new_requests_in_one_launch()
    found = []
    stock = triton_step.write_entries

    def counted(entries, *tables):
        found.append(len(entries))
        stock(entries, *tables)

    monkeypatch.setattr(triton_step, "write_entries", counted)
    return found


def admitted(names):
    """A scheduler's output that admits so many requests at once."""
    scheduling = Scheduling(0)
    scheduling.events = set
    outputs = []
    for _ in range(names):
        scheduling.running, held = {}, scheduling.running
        outputs.append(scheduling.step())
        scheduling.running |= held
    first, *others = outputs
    for each in others:
        first.scheduled_new_reqs += each.scheduled_new_reqs
        first.num_scheduled_tokens |= each.num_scheduled_tokens
        first.total_num_scheduled_tokens += each.total_num_scheduled_tokens
    return first


@pytest.mark.parametrize("count", [1, 4])
def test_requests_are_added_in_one_launch_and_leave_what_vllm_leaves(launched, count):
    ours, vllms = runner(), runner(hooked=False)
    output = admitted(count)
    for each in (ours, vllms):
        each.add_requests(output)
        each.update_requests(output)
        each.block_tables.apply_staged_writes()
    same_buffers(ours, vllms)
    # A token each, two numbers, and blocks of two caches.
    blocks = sum(len(ids) for new in output.scheduled_new_reqs for ids in new.block_ids)
    assert launched == [3 * count + blocks]
    assert not any(each._staged_write_indices for each in ours.block_tables.block_tables)


def test_no_row_of_drafts_is_blanked_and_they_are_still_the_runners(launched):
    made = runner()
    drafts = made.req_states.draft_tokens
    drafts.fill_(7)
    made.add_requests(admitted(1))
    assert made.req_states.draft_tokens is drafts
    assert (drafts == 7).all()


def test_blocks_of_running_requests_and_another_cache_are_written_there(launched):
    made = runner()
    made.add_requests(admitted(1))
    made.block_tables.append_block_ids(5, ([41], []), overwrite=True)
    made.block_tables.apply_staged_writes()
    assert made.block_tables.block_tables[0].gpu[5, 0] == 41
    assert launched[1:] == [1]
    made.block_tables.apply_staged_writes()
    assert len(launched) == 2  # nothing is staged
    made.block_tables = runner().block_tables
    made.add_requests(admitted(1))
    assert made.block_tables.block_tables[0].gpu.any()


def test_other_models_have_vllms_writes(launched):
    made = runner(ours=False)
    made.req_states.draft_tokens.fill_(7)
    made.add_requests(admitted(1))
    made.block_tables.apply_staged_writes()
    assert launched == []
    assert made.block_tables.block_tables[0].gpu.any()
    assert (made.req_states.draft_tokens == 0).any()


def test_a_request_that_cannot_be_added_leaves_the_drafts_where_they_are(launched):
    made = runner()
    made.add_requests(admitted(1))
    drafts, made.req_states.free_indices = made.req_states.draft_tokens, []
    with pytest.raises(AssertionError, match="No free indices"):
        made.req_states.add_request("r9", 1, [2], 0, 5)
    assert made.req_states.draft_tokens is drafts


def test_new_blocks_are_appended_as_vllm_appends_them_and_no_row_overflows(launched):
    ours, vllms = runner(), runner(hooked=False).block_tables
    tables = ours.block_tables
    for new in ([([5, 6], [7]), None], [([], [8]), ([9], [])], [None, None]):
        requests.append_blocks(ours, [3, 0], new)
        for slot, groups in zip([3, 0], new, strict=True):
            if groups is not None:
                vllms.append_block_ids(slot, groups, overwrite=False)
        vllms.apply_staged_writes()
        for one, other in zip(tables.block_tables, vllms.block_tables, strict=True):
            assert torch.equal(one.gpu, other.gpu)
        assert torch.equal(tables.num_blocks.gpu, vllms.num_blocks.gpu)
    assert launched == [3, 2]
    width = tables.input_block_tables[1].shape[1]
    with pytest.raises(RuntimeError, match="slot 3, cache group 1"):
        requests.append_blocks(ours, [3], [([], [1] * width)])


def test_control_an_entry_that_is_forgotten_shows(launched, monkeypatch):
    stock = triton_step.write_entries
    monkeypatch.setattr(triton_step, "write_entries", lambda entries, *tables: stock(entries[:-1], *tables))
    ours, vllms = runner(), runner(hooked=False)
    output = admitted(2)
    for each in (ours, vllms):
        each.add_requests(output)
        each.block_tables.apply_staged_writes()
    with pytest.raises(AssertionError):
        same_buffers(ours, vllms)


def test_tensors_of_another_type_are_refused(launched):
    made = runner()
    made.req_states.total_len.gpu = made.req_states.total_len.gpu.long()
    with pytest.raises(TypeError, match="int64"):
        requests.entries_of(made)


def test_contract_vllm_writes_a_requests_entries_before_anything_reads_them():
    """The sampler's own writes read the requests' tokens."""
    import inspect

    source = inspect.getsource(inspect.unwrap(GPUModelRunner.add_requests))
    order = [
        source.index(f"self.{name}.apply_staged_writes()")
        for name in ("req_states", "model_state", "sampler")
    ]
    assert order == sorted(order)
    assert source.index("append_block_ids(") < order[0]
