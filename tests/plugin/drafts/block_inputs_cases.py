"""A block's inputs and the drafts' scatter: cases for the GPU and for Triton's interpreter, and a plain loop's word."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import torch

from plugin.drafts.kernels.block_inputs import store_drafts, write_block_inputs

MASK, PAGE, MAX_LEN, REQUESTS, TOKENS = 3, 8, 48, 6, 64
WRITTEN = ("ids", "positions", "starts", "lengths", "slots", "context_positions", "context_slots")
# Name: rows of the graph, tokens of a block, and of each request its slot, tokens computed before, tokens of the step
# and how many of those are rejected.
CASES = {
    "one request": (1, 4, [(2, 9, 4, 0)]),
    "rejected drafts beside a first token": (2, 4, [(2, 9, 4, 3), (0, 0, 1, 0)]),
    "rows without a request": (5, 4, [(1, 30, 4, 1), (3, 5, 2, 0)]),
    "no request at all": (3, 4, []),
    "every slot predicts": (2, 3, [(4, 14, 4, 2), (5, 6, 4, 0)]),
    "more tokens than the graph has room for": (2, 4, [(0, 7, 36, 0), (1, 3, 4, 2)]),
    "at the context's end": (1, 8, [(0, 42, 6, 1)]),
    "a block of sixteen": (2, 17, [(3, 2, 17, 9), (1, 20, 5, 0)]),
}


def slot(row, position):
    """The slot of a position in a row of the block table; -1 in block 0."""
    block = int(row[min(position // PAGE, len(row) - 1)])
    return block * PAGE + position % PAGE if block else -1


def loop(
    ids, positions, starts, lengths, slots, context_positions, context_slots,
    *, requests, computed, sampled, step_positions, step_starts, block_table, block_size, query_len, mask_id,
    max_model_len,
):  # fmt: skip
    """`write_block_inputs`, row by row and token by token."""
    assert block_size == PAGE
    every_slot = context_slots.as_strided((TOKENS,), (1,))  # the graph reads only the first
    for row, request in enumerate(requests.tolist()):
        done = int(computed[request]) if request >= 0 else 0
        begin, end = step_starts[row : row + 2].tolist()
        for token in range(begin, end):
            position = int(step_positions[token])
            accepted = request >= 0 and position < done
            context_positions[token] = position if accepted else 0
            every_slot[token] = slot(block_table[row], position) if accepted else -1
        for i in range(query_len):
            at = row * query_len + i
            ids[at] = mask_id if i else int(sampled[request]) if request >= 0 else 0
            positions[at] = min(done + i, max_model_len - 1)
            slots[at] = slot(block_table[row], done + i) if request >= 0 else -1
        lengths[row] = min(done + query_len, max_model_len) if request >= 0 else 0
    context_slots[end:] = -1
    count = sum(request >= 0 for request in requests.tolist())
    for row in range(len(requests) + 1):
        starts[row] = min(row, count) * query_len


def made(name, device):
    """Buffers of -7 to be written, and what is read; a third of the blocks belong to nobody."""
    rows, query, batch = CASES[name]
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([0, *(tokens for _, _, tokens, _ in batch)]).cumsum(0)
    bounds = torch.full((REQUESTS + 1,), int(lengths[-1]))
    bounds[: len(lengths)] = lengths
    positions = torch.full((TOKENS,), 99)
    computed = torch.full((REQUESTS,), 77)
    requests = torch.full((rows,), -1)
    for row, (request, before, tokens, rejected) in enumerate(batch):
        positions[bounds[row] : bounds[row + 1]] = torch.arange(before, before + tokens)
        computed[request] = before + tokens - rejected
        requests[row] = request
    table = torch.randint(-4, 9, (REQUESTS, MAX_LEN // PAGE), generator=generator).clamp(min=0)
    table[0, -1], table[1, 0] = 7, 5  # behind a row's last block stands another row's first
    written = {n: torch.full((TOKENS,), -7) for n in WRITTEN}
    for n in ("ids", "starts", "lengths"):
        written[n] = written[n].int()
    read = {
        "requests": requests, "computed": computed.int(),
        "sampled": torch.randint(5, 99, (REQUESTS, 1), generator=generator), "step_positions": positions,
        "step_starts": bounds.int(), "block_table": table.int(),
    }  # fmt: skip
    rest = {"block_size": PAGE, "query_len": query, "mask_id": MASK, "max_model_len": MAX_LEN}
    return (
        {n: t.to(device) for n, t in written.items()},
        {**{n: t.to(device) for n, t in read.items()}, **rest},
    )


def wrong(name, device):
    """The names of buffers that differ from the loop's, anywhere."""
    got, read = made(name, device)
    want, same = made(name, "cpu")
    room = CASES[name][0] * 4
    for buffers, given, write in ((got, read, write_block_inputs), (want, same, loop)):
        write(*(b[:room] if n == "context_slots" else b for n, b in buffers.items()), **given)
    return [n for n in WRITTEN if not torch.equal(got[n].cpu(), want[n])]


def unlike_vllms(name, device):
    """The names of buffers that differ from what vLLM's program writes there, where that writes anything."""
    from vllm.v1.worker.gpu.spec_decode.dflash.speculator import prepare_dflash_inputs

    rows, query, batch = CASES[name]
    want, read = made(name, "cpu")
    loop(*want.values(), **read)
    got, read = made(name, device)
    count, tokens = len(batch), int(read["step_starts"][-1])
    rejected = torch.tensor([r for *_, r in batch], dtype=torch.int32, device=device)
    buffers = SimpleNamespace(
        input_ids=got["ids"],
        positions=got["positions"],
        query_start_loc=got["starts"],
        seq_lens=got["lengths"],
    )
    step = SimpleNamespace(
        num_reqs=count, num_scheduled_tokens=np.array([t for _, _, t, _ in batch]),
        positions=read["step_positions"], query_start_loc=read["step_starts"], idx_mapping=read["requests"][:count],
    )  # fmt: skip
    steps = query - 1
    prefill = torch.zeros(1, REQUESTS, dtype=torch.int32, device=device)

    def unused():
        return torch.zeros(REQUESTS * query, dtype=torch.int64, device=device)

    floats = torch.zeros(REQUESTS, device=device)
    prepare_dflash_inputs(
        buffers, got["slots"], got["context_positions"], got["context_slots"], unused(), unused(), unused(),
        floats.clone(), unused(), step, torch.ones_like(rejected), rejected, read["sampled"], prefill, floats,
        unused(), read["block_table"], PAGE, 0, 1, 1, MASK, query, steps, REQUESTS, TOKENS, MAX_LEN, False,
    )  # fmt: skip
    blocks = count * query
    compared = {
        "ids": blocks, "positions": blocks, "slots": rows * query, "starts": rows + 1, "lengths": rows,
        "context_positions": tokens, "context_slots": tokens,
    }  # fmt: skip
    return [n for n, end in compared.items() if not torch.equal(got[n][:end].cpu(), want[n][:end])]


def stores_rightly(device):
    """Rows of requests go to their place, rows without one nowhere."""
    drafted = torch.arange(4 * 8, device=device).view(4, 8)[:, :7]
    out = torch.full((REQUESTS, 7), -7, device=device)
    store_drafts(drafted, torch.tensor([3, 0, -1, -1], device=device), out)
    want = torch.full((REQUESTS, 7), -7)
    want[3], want[0] = torch.arange(7), torch.arange(8, 15)
    return torch.equal(out.cpu(), want)


def give_vllm_triton():
    """vLLM's CPU build leaves Triton alone, since that has no backend for the CPU; the interpreter needs none."""
    import triton
    import triton.language as tl
    from vllm import triton_utils

    triton_utils.triton, triton_utils.tl = triton, tl


def main():
    """Print one JSON object."""
    give_vllm_triton()
    found = {"wrong": {name: wrong(name, "cpu") for name in CASES}, "stores": stores_rightly("cpu")}
    found["unlike"] = {name: unlike_vllms(name, "cpu") for name, (*_, batch) in CASES.items() if batch}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
