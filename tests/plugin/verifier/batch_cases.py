"""Entries of tables by slot, and a batch's own tensors, against plain loops: `step_cases` runs them under Triton's
interpreter."""

import ctypes

import numpy as np
import torch

from plugin.verifier.triton_step import write_batch, write_entries


def addresses(tensors):
    return torch.tensor([t.data_ptr() for t in tensors], dtype=torch.uint64, device=tensors[0].device)


def table_at(address, rows, width):
    """The int32 table at an address in the host's memory."""
    pointer = ctypes.cast(int(address), ctypes.POINTER(ctypes.c_int32))
    return torch.from_numpy(np.ctypeslib.as_array(pointer, (rows, width)))


def naive_write_entries(entries, tables, strides):
    """`write_entries` on the CPU, entry by entry."""
    for table, slot, place, value in entries.tolist():
        width = int(strides[table])
        table_at(tables[table], slot + 1, width)[slot, place] = value


def naive_write_batch(
    given,
    encoder_lens,
    slots,
    bounds,
    expanded,
    offsets,
    lens,
    graph_slots,
    draft_slots,
    num_requests,
    is_plain,
    _,
):
    """`write_batch` on the CPU, request by request."""
    own, begins = given[: len(slots)], given[len(slots) :]
    slots.copy_(own)
    draft_slots.copy_(own)
    bounds.copy_(begins)
    graph_slots.copy_(own if is_plain else torch.full_like(own, -1))
    lens.zero_()
    for row, slot in enumerate(own[:num_requests].tolist()):
        lens[row] = encoder_lens[slot]
        begin, end = begins[row : row + 2].tolist()
        expanded[begin:end] = slot
        offsets[begin:end] = torch.arange(end - begin)


def writes_entries(device):
    """Whether entries go to their places, in tables of different widths, and nothing else does."""
    own = [torch.zeros((3, width), dtype=torch.int32, device=device) for width in (5, 9, 1)]
    strides = torch.tensor([one.stride(0) for one in own], device=device)
    entries = [[1, 2, 8, 70], [0, 0, 3, 71], [0, 0, 4, 72], [1, 0, 0, 73], [2, 1, 0, 74]]
    want = [one.cpu() for one in own]
    for table, slot, place, value in entries:
        want[table][slot, place] = value
    write_entries(torch.tensor(entries, dtype=torch.int32, device=device), addresses(own), strides)
    return all(torch.equal(a.cpu(), b) for a, b in zip(own, want, strict=True))


LONGEST = 4
BATCHES = {
    "one request": ([3], [1]),
    "requests with and without drafts": ([4, 0, 2], [4, 1, 3]),
    "as many as there can be": ([5, 4, 3, 2, 1, 0], [4] * 6),
}
"""By name, slots and tokens of the requests."""


def given_batch(slots, tokens, requests):
    """What `write_batch` is given."""
    bounds = torch.full((requests + 1,), sum(tokens), dtype=torch.int32)
    bounds[: len(slots) + 1] = torch.tensor([0, *tokens]).cumsum(0)
    own = torch.full((requests,), -1, dtype=torch.int32)
    own[: len(slots)] = torch.tensor(slots)
    return torch.cat((own, bounds))


def writes_batch(name, device, plain, wrong=0):
    """Whether a batch is written as request by request, and nothing behind its tokens is. `wrong`: the control."""
    (slots, _), requests = BATCHES[name], 6
    given = given_batch(*BATCHES[name], requests)
    lens = torch.arange(10, 10 + requests, dtype=torch.int32)

    def unwritten(count, dtype):
        return torch.full((count,), -7, dtype=dtype)

    def out():
        return [
            unwritten(requests, torch.int64), unwritten(requests + 1, torch.int32),
            unwritten(requests * LONGEST, torch.int64), unwritten(requests * LONGEST, torch.int32),
            unwritten(requests, torch.int32), unwritten(requests, torch.int64), unwritten(requests, torch.int64),
        ]  # fmt: skip

    wanted, found = out(), [each.to(device) for each in out()]
    naive_write_batch(given, lens, *wanted, len(slots), plain, LONGEST)
    write_batch(given.to(device), lens.to(device) + wrong, *found, len(slots), int(plain), LONGEST)
    return all(torch.equal(a.cpu(), b) for a, b in zip(found, wanted, strict=True))
