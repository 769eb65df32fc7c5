"""A batch of decode rows that is another than the last one's: which steps have one, and who is told of it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vllm.v1.worker.gpu import model_runner
from vllm.v1.worker.gpu.model_runner import BatchReqState

from plugin.verifier import triton_step
from plugin.vllm_hooks.v2 import batches
from plugin.vllm_hooks.v2.decode_batch import all_decode, place_of
from tests.plugin.vllm_hooks.v2.fakes import SLOTS, K, hooked_decode_batches, runner
from tests.plugin.vllm_hooks.v2.schedule import Scheduling


@pytest.fixture
def launched(monkeypatch):
    """The hooks, on the CPU, and what is launched and sent for a batch, by name."""
    hooked_decode_batches(monkeypatch)
    found = []

    def counted(owner, name):
        stock = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, **kw: found.append(name) or stock(*args, **kw))

    for name in ("step_inputs", "write_batch", "write_entries"):
        counted(triton_step, name)
    for name in (
        "async_tensor_h2d", "prepare_prefill_inputs", "prepare_pos_seq_lens", "combine_sampled_and_draft_tokens",
        "expand_idx_mapping",
    ):  # fmt: skip
        counted(model_runner, name)
    with torch.inference_mode():  # as vLLM's worker
        yield found


class Sampling:
    """A graph's sampling, of batches that are plain or not."""

    def __init__(self, plain=True):
        self.slots, self.plain, self.told = torch.full((SLOTS,), 77), plain, []

    def is_plain(self, batch):
        return self.plain

    def stand_staged(self, slots):
        self.told.append(slots)


def joined(made, requests):
    """A scheduler under which one request joins in every step; its first output is next."""
    scheduling = Scheduling(0)
    scheduling.events = lambda: {"join"} if scheduling.names < requests else set()
    return scheduling


def step(made, scheduling):
    output = made.output = scheduling.step()
    made.execute_model(output, None)
    scheduling.ended(output, [made])
    return made.execute_model_state.input_batch


def test_a_step_that_admits_a_request_beside_others_is_three_launches_and_one_for_the_others_blocks(launched):
    """One for what the request brings, one for the batch, one for the step's inputs."""
    made = runner()
    scheduling = joined(made, 3)
    for _ in range(3):
        launched.clear()
        batch = step(made, scheduling)
        new_blocks = any(made.output.scheduled_cached_reqs.new_block_ids)
        assert launched == ["write_entries"] * (1 + new_blocks) + ["write_batch", "step_inputs"]
    assert batch.has_prefill and batch.num_draft_tokens == 2 * K
    launched.clear()
    step(made, scheduling)
    assert launched[-2:] == ["write_batch", "step_inputs"]


@pytest.mark.parametrize("plain", [True, False])
def test_all_who_follow_a_batch_are_told_where_it_stands(launched, plain):
    made = runner()
    sampling = made.cudagraph_manager.sampling = Sampling(plain)
    made.speculator = SimpleNamespace(in_graph=True, idx_mapping=torch.full((SLOTS,), 77), followed=None)
    scheduling = joined(made, 2)
    step(made, scheduling)
    batch = step(made, scheduling)
    slots = batch.idx_mapping_np.tolist()
    behind = [-1] * (SLOTS - 2)
    assert batch.idx_mapping.tolist() == slots
    assert sampling.slots.tolist() == (slots + behind if plain else [-1] * SLOTS)
    assert sampling.told[-1] is (batch.idx_mapping if plain else None)
    assert made.speculator.idx_mapping.tolist() == slots + behind
    assert made.speculator.followed is batch.idx_mapping
    state = made.model_state
    assert state.gathered is batch.idx_mapping
    assert state.encoder_seq_lens_gpu.tolist() == [20 + slot for slot in slots] + [0] * (SLOTS - 2)


def test_a_draft_that_is_not_in_the_graph_is_not_followed(launched):
    made = runner()
    made.speculator = SimpleNamespace(in_graph=False, idx_mapping=torch.full((SLOTS,), 77), followed=None)
    step(made, joined(made, 1))
    assert made.speculator.idx_mapping.tolist() == [77] * SLOTS
    assert made.speculator.followed is None


def test_every_batch_has_slots_of_its_own_identity(launched):
    """By which hooks know an unchanged batch; the memory is the same."""
    made = runner()
    scheduling = joined(made, 2)
    first, second = step(made, scheduling).idx_mapping, step(made, scheduling).idx_mapping
    assert first is not second
    assert first.data_ptr() == second.data_ptr()
    assert place_of(made) is place_of(made)


def state(tokens, drafts, computed, prefill, eligible=True):
    """A batch as the runner gathers it."""
    tokens, computed, prefill = (np.array(each, np.int32) for each in (tokens, computed, prefill))
    prefilling = computed < prefill
    return BatchReqState(
        req_ids=[f"r{i}" for i in range(len(tokens))], num_scheduled_tokens=tokens, num_tokens=int(tokens.sum()),
        num_draft_tokens_np=None if drafts is None else np.array(drafts, np.int32),
        idx_mapping_np=np.arange(len(tokens)), prefill_len_np=prefill,
        num_computed_prefill_tokens_np=np.minimum(computed, prefill), is_prefilling_np=prefilling,
        max_seq_len_np=None, has_prefill=bool(prefilling.any()), prefill_runs_as_decode_np=prefilling,
        decode_graph_eligible=eligible,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (state([1, 1], None, [5, 6], [1, 1]), True),
        (state([1 + K, 2], [K, 1], [5, 6], [1, 1]), True),
        (state([1 + K, 1], [K, 0], [5, 0], [1, 1]), True),  # a first token beside drafts
        (state([1, 1], None, [6, 0], [7, 1]), True),  # the last of a resumed request's
        (state([1, 1], None, [3, 0], [7, 1]), False),  # one in its midst
        (state([2, 1], [1, 0], [0, 5], [1, 1]), False),  # drafts beside the first token
        (state([1, 7], None, [5, 0], [1, 7], eligible=False), False),
        (state([3, 1], None, [5, 6], [1, 1]), False),  # tokens that have no logits
    ],
)
def test_a_batch_of_decode_rows_is_one_whose_tokens_all_have_logits(given, found):
    made = SimpleNamespace(model_config=SimpleNamespace(rswa_window=None), fast_prefill=None)
    assert all_decode(made, given) is found
    for other in (
        SimpleNamespace(model_config=SimpleNamespace(rswa_window=64), fast_prefill=None),
        SimpleNamespace(model_config=SimpleNamespace(rswa_window=None), fast_prefill=object()),
    ):
        assert not all_decode(other, given)


def test_steps_without_a_graph_and_engines_of_other_kinds_have_vllms_batches(launched, monkeypatch):
    monkeypatch.setattr(batches, "replays", lambda desc: False)
    made = runner()
    step(made, joined(made, 1))
    assert "write_batch" not in launched and "async_tensor_h2d" in launched
    monkeypatch.undo()


@pytest.mark.parametrize("name", ["adaptive_verification", "pcp_manager", "dcp_size"])
def test_what_changes_a_batch_on_the_device_keeps_it_vllms(launched, name):
    made = runner()
    setattr(made, name, 2 if name == "dcp_size" else object())
    assert not batches._is_ours(made)
    assert batches._is_ours(runner())
    assert not batches._is_ours(runner(ours=False))
