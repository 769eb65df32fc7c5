"""Cross pages with several owners, in vLLM's own block pool; and who brings an encoder input, and slots for it."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vllm.model_executor.layers.attention import cross_attention
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched import scheduler as scheduler_module
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.request import RequestStatus
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from plugin.vllm_hooks import cross_pages, v1_runner
from plugin.vllm_hooks.cross_pages import CrossPages

PAGE, LONGEST, ENCODER = 16, 100, 40
SHAPE = {"block_size": PAGE, "num_kv_heads": 1, "head_size": 32, "dtype": torch.float32}
CROSS = CrossAttentionSpec(**SHAPE)
CROSS_BLOCKS = 3


def kv_cache_manager(blocks):
    specs = FullAttentionSpec(**SHAPE), CROSS
    groups = [KVCacheGroupSpec([f"l{i}"], spec) for i, spec in enumerate(specs)]
    return KVCacheManager(KVCacheConfig(blocks, [], groups), LONGEST, PAGE, PAGE, enable_caching=False)


def request(name):
    return SimpleNamespace(
        request_id=name, num_computed_tokens=0, num_in_flight_tokens=0, num_prompt_tokens=1, num_tokens=1,
        status=RequestStatus.WAITING,
    )  # fmt: skip


def admit(manager, new, encoder_tokens):
    got = manager.allocate_slots(new, 1, num_encoder_tokens=encoder_tokens, full_sequence_must_fit=True)
    if got is not None:
        new.status, new.num_computed_tokens = RequestStatus.RUNNING, 1
    return got


def free_blocks(manager):
    return manager.block_pool.get_num_free_blocks()


def test_a_shared_prompt_takes_its_pages_once_and_they_stay_until_the_last_owner_ends():
    manager = kv_cache_manager(10)
    pages, before = CrossPages(manager), free_blocks(manager)
    a, b, c = (request(name) for name in "abc")
    admit(manager, a, ENCODER)
    assert before - free_blocks(manager) == 1 + CROSS_BLOCKS
    for taker in (b, c):
        pages.share("a", taker.request_id)
        assert admit(manager, taker, 0) is not None
    assert before - free_blocks(manager) == 3 + CROSS_BLOCKS
    of_a, of_b, of_c = (manager.get_block_ids(name)[1] for name in "abc")
    assert of_a == of_b == of_c and len(of_a) == CROSS_BLOCKS
    manager.free(a)  # the one who wrote them, ended or preempted
    assert before - free_blocks(manager) == 2 + CROSS_BLOCKS
    pages.share("b", "a")  # and back
    assert manager.get_block_ids("a")[1] == of_b
    for each in (c, b, a):
        manager.free(each)
    assert free_blocks(manager) == before
    assert all(block.ref_cnt == 0 for block in manager.block_pool.blocks if not block.is_null)


def test_who_shares_needs_no_more_than_its_own_pages():
    """One block is left, too few for the prompt; and it gives back what it was given if not even one is."""
    manager = kv_cache_manager(1 + 2 * (1 + CROSS_BLOCKS) + 1)
    pages = CrossPages(manager)
    for name in "ab":
        admit(manager, request(name), ENCODER)
    taker = request("c")
    assert admit(manager, taker, ENCODER) is None
    pages.share("a", "c")
    assert admit(manager, taker, 0) is not None
    assert free_blocks(manager) == 0
    pages.share("a", "d")
    assert admit(manager, request("d"), 0) is None
    pages.give_back("d")
    assert manager.get_block_ids("d") == ([], [])
    for name in "abc":
        manager.free(request(name))
    assert free_blocks(manager) == 2 * (1 + CROSS_BLOCKS) + 1


def test_pages_of_nobody_and_for_somebody_who_has_some_are_refused():
    manager = kv_cache_manager(20)
    pages = CrossPages(manager)
    with pytest.raises(RuntimeError, match="cross pages of gone cannot be shared with a"):
        pages.share("gone", "a")
    for name in "ab":
        admit(manager, request(name), ENCODER)
    with pytest.raises(RuntimeError, match="of a cannot be shared with b"):
        pages.share("a", "b")


def test_blocks_are_counted_right_under_random_sharing():
    """Requests of three prompts come, share, are refused, end and come back; against sets of what each must own."""
    draw, manager = random.Random(5), kv_cache_manager(30)
    pages, all_blocks = CrossPages(manager), 29
    running, prompts, serial, shared, refused = [], {}, 0, 0, 0
    for _ in range(2000):
        if draw.random() < 0.4:
            serial += 1
            new, prompt = request(f"r{serial}"), draw.randrange(3)
            holder = next((r.request_id for r in running if prompts[r.request_id] == prompt), None)
            if holder:
                pages.share(holder, new.request_id)
            if admit(manager, new, 0 if holder else ENCODER) is None:
                refused += 1
                if holder:
                    pages.give_back(new.request_id)
            else:
                shared += holder is not None
                running.append(new)
                prompts[new.request_id] = prompt
        if running and draw.random() < 0.3:
            gone = running.pop(draw.randrange(len(running)))
            manager.free(gone)
        owned = set()
        for one in running:
            mine, cross = map(set, manager.get_block_ids(one.request_id))
            assert len(mine) == 1 and len(cross) == CROSS_BLOCKS and not owned & mine
            owned |= mine
        for prompt in range(3):
            of_prompt = {
                tuple(manager.get_block_ids(r.request_id)[1])
                for r in running
                if prompts[r.request_id] == prompt
            }
            assert len(of_prompt) <= 1
            for cross in of_prompt:
                assert not owned & set(cross)
                owned |= set(cross)
        assert free_blocks(manager) == all_blocks - len(owned)
    assert shared > 100 and refused > 10


@pytest.fixture
def scheduling():
    cross_pages.encoder_inputs_before_the_first_token()
    return Scheduler._try_schedule_encoder_inputs


@pytest.mark.parametrize(
    ("encoder", "computed", "asks"), [(True, 0, True), (True, 5, False), (False, 5, True)]
)
def test_running_requests_have_no_encoder_inputs_left(monkeypatch, scheduling, encoder, computed, asks):
    """And what vLLM finds out about them is the same."""
    scheduler = SimpleNamespace(is_encoder_decoder=encoder, encoder_cache_manager=object())
    position = SimpleNamespace(offset=0, length=9, get_num_embeds=lambda: 9)
    features = [SimpleNamespace(mm_position=position, identifier="x")]
    running = SimpleNamespace(has_encoder_inputs=True, mm_features=features)
    looked = []
    monkeypatch.setattr(
        scheduler_module, "get_mm_features_in_window", lambda *_, **__: looked.append(1) or (0, 0)
    )
    assert scheduling(scheduler, running, computed, 4, 100) == ([], 4, 100, [], [])
    assert bool(looked) is asks
    monkeypatch.undo()
    if not asks:
        assert scheduling.__wrapped__(scheduler, running, computed, 4, 100) == ([], 4, 100, [], [])


@pytest.mark.parametrize("shares", [True, False])
def test_who_shares_pages_brings_no_encoder_input(scheduling, shares):
    asked = []

    class Manager:
        def share_pages(self, request, pages):
            asked.append((request, pages))
            return shares

        def can_allocate(self, *_):
            return False

    scheduler = SimpleNamespace(
        is_encoder_decoder=True,
        encoder_cache_manager=Manager(),
        kv_cache_manager=kv_cache_manager(10),
        scheduler_config=SimpleNamespace(disable_chunked_mm_input=False),
    )
    position = SimpleNamespace(offset=0, length=9, get_num_embeds=lambda: 9)
    features = [SimpleNamespace(mm_position=position, identifier="x")]
    new = SimpleNamespace(has_encoder_inputs=True, mm_features=features)
    assert scheduling(scheduler, new, 0, 1, 100) == ([], int(shares), 100, [], [])
    assert asked[0][0] is new and isinstance(asked[0][1], CrossPages)


def test_v1_maps_slots_for_who_brings_states(monkeypatch):
    """Rows of the batch: one that runs, one that shares pages, one that writes; then as vLLM does it, for a dummy."""
    for owner, name in (
        (GPUModelRunner, "_update_states"),
        (GPUModelRunner, "_get_encoder_seq_lens"),
        (cross_attention, "_get_cross_slot_mapping"),
    ):
        stock = getattr(owner, name)
        monkeypatch.setattr(owner, name, getattr(stock, "__wrapped__", stock))
    monkeypatch.setattr(GPUModelRunner, "_update_states", lambda self, scheduler_output: None)
    lengths = np.array([5, 20, 18, 0], dtype=np.int32)
    monkeypatch.setattr(
        GPUModelRunner,
        "_get_encoder_seq_lens",
        lambda self, num_scheduled_tokens, kv_cache_spec, num_reqs, for_cudagraph_capture=False: (
            torch.from_numpy(lengths), lengths,
        ),
    )  # fmt: skip
    v1_runner.cross_slots_of_who_writes()
    runner = GPUModelRunner.__new__(GPUModelRunner)
    runner.input_batch = SimpleNamespace(req_id_to_index={"runs": 0, "shares": 1, "writes": 2})
    runner._update_states(SimpleNamespace(scheduled_encoder_inputs={"writes": [0]}))
    table = torch.tensor([[1, 0], [2, 3], [4, 5], [0, 0]])

    def mapped(tokens):
        runner._get_encoder_seq_lens(tokens, CROSS, 4)
        fresh = np.array([0, 20, 18, 0], dtype=np.int32)  # vLLM's builder leaves out who has tokens computed
        return cross_attention._get_cross_slot_mapping(fresh, table, CROSS, torch.device("cpu")).tolist()

    writes = [4 * PAGE + i for i in range(16)] + [5 * PAGE, 5 * PAGE + 1]
    assert mapped({"runs": 1, "shares": 1, "writes": 1}) == writes
    assert len(mapped({})) == 20 + 18
