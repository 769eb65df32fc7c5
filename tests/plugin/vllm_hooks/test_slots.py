"""What running requests get of the scheduler: the blocks that vLLM would have given."""

import random
from types import SimpleNamespace

import pytest
import torch
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import (
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import RequestStatus

from plugin.vllm_hooks import slots

PAGE, LONGEST, ENCODER = 16, 100, 40
SHAPE = {"block_size": PAGE, "num_kv_heads": 1, "head_size": 32, "dtype": torch.float32}
FULL, CROSS = FullAttentionSpec(**SHAPE), CrossAttentionSpec(**SHAPE)


def manager(blocks, specs=(FULL, FULL, CROSS), caching=False):
    config = KVCacheConfig(blocks, [], [KVCacheGroupSpec([f"l{i}"], spec) for i, spec in enumerate(specs)])
    return KVCacheManager(config, LONGEST, PAGE, PAGE, enable_caching=caching)


def request(name):
    return SimpleNamespace(
        request_id=name, num_computed_tokens=0, num_in_flight_tokens=0, num_prompt_tokens=1, num_tokens=1,
        status=RequestStatus.WAITING,
    )  # fmt: skip


def given(blocks):
    return None if blocks is None else blocks.get_block_ids()


@pytest.fixture(autouse=True)
def _hooked():
    slots.slots_that_are_there()


@pytest.mark.parametrize("blocks", [200, 26], ids=["room for all", "room for few"])
@pytest.mark.parametrize("lookahead", [0, 7])
def test_requests_get_what_vllm_gives_them(blocks, lookahead):
    """Requests that come, draft, are rejected, end and are preempted, on a manager of vLLM's own and on ours."""
    draw = random.Random(3)
    ours, stock = manager(blocks), manager(blocks)
    allocate = KVCacheManager.allocate_slots
    running, serial, quick, refused = [], 0, 0, 0
    for _ in range(600):
        if len(running) < 5 and draw.random() < 0.3:
            serial += 1
            new = request(f"r{serial}")
            options = {
                "num_lookahead_tokens": lookahead, "num_encoder_tokens": ENCODER,
                "has_scheduled_reqs": bool(running),
            }  # fmt: skip
            got = given(allocate(ours, new, 1, **options))
            assert got == given(allocate.__wrapped__(stock, new, 1, **options))
            if got is None:
                continue
            new.status, new.num_computed_tokens = RequestStatus.RUNNING, 1
            running.append(new)
        for each in list(running):
            tokens = min(draw.choice([1, 4, 8]), LONGEST - each.num_computed_tokens - 1)
            got = given(allocate(ours, each, tokens, num_lookahead_tokens=lookahead))
            assert got == given(allocate.__wrapped__(stock, each, tokens, num_lookahead_tokens=lookahead))
            quick += got == ([], [], [])
            if got is None:
                refused += 1
            else:
                each.num_computed_tokens += draw.randint(1, tokens)
                each.num_tokens = each.num_computed_tokens
            if got is None or each.num_computed_tokens >= LONGEST - 2 or draw.random() < 0.02:
                running.remove(each)
                for one in (ours, stock):
                    one.free(each)
    assert quick > 500
    assert (refused > 0) == (blocks == 26)
    assert ours.block_pool.get_num_free_blocks() == stock.block_pool.get_num_free_blocks()


@pytest.mark.parametrize(
    "made",
    [
        lambda: manager(50, (FULL, FULL)),  # no encoder
        lambda: manager(50, (FULL, SlidingWindowSpec(sliding_window=32, **SHAPE), CROSS)),
        lambda: manager(50, (FULL,), caching=True),
    ],
    ids=["decoder only", "a window", "shared blocks"],
)
def test_other_caches_stay_with_vllm(made):
    assert slots._growing(made()) == ()
    assert len(slots._growing(manager(50))) == 2
