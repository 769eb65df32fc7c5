"""Steps of a runner whose graphs sample, and what each must leave behind, a request at a time. As a program under
Triton's interpreter: with our programs and vLLM's, which are not compiled without a GPU."""

import json
import sys
from types import SimpleNamespace

import torch
from vllm.v1.worker.gpu import input_batch
from vllm.v1.worker.gpu.input_batch import InputBuffers

from plugin.vllm_hooks.v2.graph_sampling import GraphSampling

K, SLOTS, VOCAB, LONGEST, GRAPH = 3, 6, 23, 40, 24


def greedy_by_row(logits, bounds, tokens, width, synthetic, out):
    """`triton_greedy.greedy`, a request at a time."""
    sampled, num_sampled, num_rejected = out
    for request, (begin, end) in enumerate(zip(bounds.tolist(), bounds[1:].tolist(), strict=False)):
        found = []
        for row in range(begin, end):
            token, draft = int(logits[row].argmax()), int(tokens[row + 1]) if row + 1 < end else None
            accepted = draft == token
            if synthetic is not None and draft is not None:
                rates, positions, slots, seeds = synthetic
                # In the place of random numbers: the seed and the position say whether the rate is reached.
                chance = (int(seeds[slots[request]]) + int(positions[row])) % 2 / 2
                accepted = chance < float(rates[row - begin])
            found.append(draft if accepted and draft is not None else token)
            if draft is None or not accepted:
                break
        sampled[request, : len(found)] = torch.tensor(found, dtype=torch.int64)
        num_sampled[request] = len(found)
        num_rejected[request] = end - begin - len(found) if end > begin else 0


def update_by_row(slots, computed, last, counts, sampled, num_sampled, num_rejected, bounds, ids, total):
    """vLLM's `post_update`, a request at a time."""
    for request, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        number, begin = int(num_sampled[request]), int(total[slot])
        tokens = sampled[request, :number]
        if number:
            last[slot] = tokens[-1]
        ids[slot, begin : begin + number] = tokens.to(ids.dtype)
        for token in tokens.tolist():
            counts[slot, token] += 1
        total[slot] += number
        computed[slot] += int(bounds[request + 1] - bounds[request] - num_rejected[request])


def runner(device, rates=None):
    """What `GraphSampling` reads of a runner; the head takes a hidden state for logits."""
    whole = {"dtype": torch.int32, "device": device}
    return SimpleNamespace(
        max_num_reqs=SLOTS, num_speculative_steps=K, device=torch.device(device), vocab_size=VOCAB,
        rejection_sampler=SimpleNamespace(synthetic_conditional_rates=rates),
        model=SimpleNamespace(compute_logits=lambda states: states * 2),
        model_config=SimpleNamespace(head_dtype=torch.float32),
        input_buffers=InputBuffers(SLOTS, GRAPH, torch.device(device)),
        req_states=SimpleNamespace(
            num_computed_tokens=SimpleNamespace(gpu=torch.zeros(SLOTS, **whole)),
            last_sampled_tokens=torch.zeros(SLOTS, 1, dtype=torch.int64, device=device),
            all_token_ids=SimpleNamespace(gpu=torch.zeros(SLOTS, LONGEST, **whole)),
            total_len=SimpleNamespace(gpu=torch.ones(SLOTS, **whole)),
        ),
        sampler=SimpleNamespace(
            penalties_state=SimpleNamespace(output_bin_counts=torch.zeros(SLOTS, VOCAB, **whole)),
            sampling_states=SimpleNamespace(seeds=SimpleNamespace(gpu=torch.arange(SLOTS, device=device))),
        ),
        model_state=SimpleNamespace(batch=None),
    )  # fmt: skip


def state(made):
    states = made.req_states
    return (
        states.num_computed_tokens.gpu, states.last_sampled_tokens,
        made.sampler.penalties_state.output_bin_counts, states.all_token_ids.gpu, states.total_len.gpu,
    )  # fmt: skip


# Slots and drafts of a step's requests, and whether it is plain. The same twice is the same batch, its tensor kept.
STEPS = [
    ([2, 0], [K, K], True), ([2, 0], [K, K], True), ([2, 0], [K, 1], True),
    ([5, 2, 0], [0, K, 2], True), ([5, 2, 0], [0, K, 2], False), ([5, 2, 0], [0, K, 2], True),
    ([1], [0], False), ([1], [K], True), ([4, 3, 5, 1, 2, 0], [K] * 6, True), ([0], [0], True),
]  # fmt: skip


def walk(made, sampling, replay, generator):
    """Runs all steps; `replay(hidden_states)` is the graph. Yields, after each, what there is and what there should be:
    the tokens, their numbers, and the state."""
    device, slots_before = made.device, None
    for slots, drafts, plain in STEPS:
        lengths = torch.tensor(drafts) + 1
        total = int(lengths.sum())
        if slots != slots_before or not plain:
            tensor = torch.tensor(slots, device=device)
        slots_before = slots
        made.model_state.batch = batch = SimpleNamespace(idx_mapping=tensor, num_reqs=len(slots), plain=plain)
        hidden = torch.rand(GRAPH, VOCAB, generator=generator)
        bounds = torch.full((SLOTS + 1,), total, dtype=torch.int32)
        bounds[0], bounds[1 : len(slots) + 1] = 0, lengths.cumsum(0)
        ids = torch.cat((torch.zeros(1), (hidden * 2).argmax(1)[:-1])).int()
        ids[torch.rand(GRAPH, generator=generator) < 0.3] = 5
        buffers = made.input_buffers
        buffers.query_start_loc.copy_(bounds)
        buffers.input_ids.copy_(ids)
        buffers.positions.copy_(torch.randint(0, 99, (GRAPH,), generator=generator))
        counts = torch.zeros(2, len(slots), dtype=torch.int32)
        out = torch.zeros(len(slots), 1 + K, dtype=torch.int64), *counts
        wanted = [each.cpu().clone() for each in state(made)]
        rates = made.rejection_sampler.synthetic_conditional_rates
        seeds = made.sampler.sampling_states.seeds.gpu.cpu()
        given = None
        if rates is not None:
            given = rates.cpu(), buffers.positions.cpu(), torch.tensor(slots), seeds
        greedy_by_row(hidden * 2, bounds[: len(slots) + 1], ids, 1 + K, given, out)
        if plain:
            update_by_row(torch.tensor(slots), *wanted[:3], *out, bounds, *wanted[3:])
        sampling.stage()
        replay(hidden.to(device))
        yield batch, plain, out, wanted


def made_with(device, rates=None):
    made = runner(device, rates)
    return made, GraphSampling(made, lambda batch: batch.plain)


def check(made, sampling, replay):
    generator = torch.Generator().manual_seed(3)
    for batch, plain, (sampled, num_sampled, num_rejected), wanted in walk(made, sampling, replay, generator):
        for one, other in zip(state(made), wanted, strict=True):
            assert torch.equal(one.cpu(), other)
        found = sampling.output(batch)
        if not plain:
            assert found is None
            continue
        known = torch.arange(1 + K)[None] < num_sampled[:, None]
        assert torch.equal(found.sampled_token_ids.cpu()[known], sampled[known])
        assert found.num_sampled.tolist() == num_sampled.tolist()
        assert found.num_rejected.tolist() == num_rejected.tolist()
        assert sampling.has_updated(found.sampled_token_ids)
        assert not sampling.has_updated(found.sampled_token_ids.clone())
        # The padding has no tokens.
        assert not sampling._tokens.num_sampled[batch.num_reqs : SLOTS].any()
        assert not sampling._tokens.num_rejected[batch.num_reqs : SLOTS].any()


def main() -> None:
    """Print that all is as it should be, as JSON."""
    import triton
    import triton.language as tl

    # Without a GPU vLLM leaves its programs plain functions.
    input_batch.tl = tl
    input_batch._post_update_kernel = triton.jit(input_batch._post_update_kernel)
    made, sampling = made_with("cpu")
    check(made, sampling, lambda hidden: sampling.run(hidden, SLOTS))
    json.dump("as it should be", sys.stdout)


if __name__ == "__main__":
    main()
