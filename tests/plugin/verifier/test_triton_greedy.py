"""Greedy tokens and accepted drafts in two launches: what a plain loop finds, and what vLLM's own programs find."""

import pytest
import torch

from tests.plugin.attention.interpreted import interpreted_errors
from tests.plugin.verifier.greedy_cases import CASES, K, accepts_by_rate, is_right, made


@pytest.fixture(scope="module")
def interpreted():
    return interpreted_errors("tests.plugin.verifier.greedy_cases")


@pytest.mark.parametrize("name", CASES)
def test_the_programs_accept_what_is_largest(interpreted, name):
    assert interpreted[name]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", CASES)
def test_gpu_the_programs_accept_what_is_largest(name, dtype):
    assert is_right(name, "cuda", dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("synthetic", [False, True])
def test_gpu_vllms_rejection_gives_the_same(synthetic):
    """With vLLM's synthetic acceptance, too: the same draws at the same positions and seeds."""
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample

    from plugin.verifier.triton_greedy import greedy

    assert accepts_by_rate("cuda")
    for name in ("as many drafts each", "fewer drafts, and none", "more than one block"):
        logits, bounds, tokens = made(name, "cuda", torch.bfloat16)
        rows, requests = len(logits), len(bounds) - 1
        counts = (bounds[1:] - bounds[:-1]).long()
        slots = torch.arange(requests, device="cuda").flip(0)
        positions = torch.arange(100, 100 + rows, device="cuda")
        rates = torch.tensor([0.8, 0.6, 0.5], device="cuda") if synthetic else None
        seeds = torch.arange(requests, device="cuda") * 977 - 3
        local = torch.cat([torch.arange(int(count), dtype=torch.int32) for count in counts]).cuda()
        want, num_accepted = rejection_sample(
            logits, None, tokens[:rows], bounds, positions, slots, slots.repeat_interleave(counts), local,
            torch.zeros(requests, device="cuda"), seeds, K, rates,
        )  # fmt: skip
        given = None if rates is None else (rates, positions, slots, seeds)
        sampled, num_sampled, num_rejected = greedy(logits, bounds, tokens, 1 + K, given)
        assert torch.equal(num_sampled, num_accepted)
        assert torch.equal(num_rejected, (counts - num_sampled).int())
        known = torch.arange(1 + K, device="cuda")[None] < num_sampled[:, None]
        assert torch.equal(sampled[known], want[known])
