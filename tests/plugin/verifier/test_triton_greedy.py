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


@pytest.mark.gpu
@pytest.mark.parametrize("synthetic", [False, True])
def test_gpu_a_captured_graph_chooses_for_other_batches(synthetic):
    """One graph for up to six requests, replayed for each case's: the same as without a graph, and nobody's tokens for
    the padding, whose slot is -1."""
    from plugin.verifier.triton_greedy import greedy

    names = ("one request", "fewer drafts, and none", "padding behind")
    rows, most, size = 32, 6, 512
    logits = torch.zeros(rows, size, device="cuda")
    bounds = torch.zeros(most + 1, dtype=torch.int32, device="cuda")
    tokens, positions = torch.zeros(rows, dtype=torch.int32, device="cuda"), torch.arange(rows, device="cuda")
    slots, seeds = torch.full((most,), -1, device="cuda"), torch.arange(most, device="cuda") * 977 - 3
    rates = torch.tensor([0.8, 0.6, 0.5], device="cuda")
    out = (
        torch.zeros(most, 1 + K, dtype=torch.int64, device="cuda"),
        torch.zeros(most, dtype=torch.int32, device="cuda"),
        torch.zeros(most, dtype=torch.int32, device="cuda"),
    )
    given = (rates, positions, slots, seeds) if synthetic else None
    greedy(logits, bounds, tokens, 1 + K, given, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        greedy(logits, bounds, tokens, 1 + K, given, out)
    for name in names:
        own, ends, drafts = made(name, "cuda", torch.float32)
        count = sum(d >= 0 for d in CASES[name][0])
        logits.fill_(float("nan"))[: len(own)] = torch.nn.functional.pad(
            own, (0, size - own.shape[1]), value=-1e9
        )
        bounds[: count + 1], bounds[count + 1 :] = ends[: count + 1], ends[count]
        tokens[: len(own)] = drafts[: len(own)]
        slots.fill_(-1)[:count] = torch.arange(count, device="cuda").flip(0)
        graph.replay()
        want = greedy(
            logits[: len(own)], ends[: count + 1], drafts, 1 + K,
            (rates, positions, slots[:count], seeds) if synthetic else None,
        )  # fmt: skip
        known = torch.arange(1 + K, device="cuda")[None] < want[1][:, None]
        assert torch.equal(out[0][:count][known], want[0][known])
        for one, other in zip(out[1:], want[1:], strict=True):
            assert one.tolist() == [*other.tolist(), *[0] * (most - count)]
