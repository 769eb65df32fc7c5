"""A decode step's inputs under Triton's interpreter, a process of its own: prints by case whether all of it is right.

There vLLM's own programs run, too: without a GPU vLLM has a placeholder for Triton, which has to be replaced
before its programs are made.
"""

import json
import sys
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import torch

from plugin.verifier.triton_step import BLOCK, PAD_SLOT_ID, step_inputs
from tests.plugin.verifier.batch_cases import BATCHES, addresses, table_at, writes_batch, writes_entries


@dataclass(frozen=True)
class Case:
    """By request: tokens, logits, and the tokens before the step and of its prompt. `num_rows` are the graph's."""

    tokens: list[int]
    logits: list[int]
    num_rows: int
    computed: list[int]
    prefill: list[int]
    block_sizes: tuple[int, ...] = (16, 32)
    enabled: tuple[bool, ...] = (True, True)
    width: int = 40
    k: int = 7
    max_requests: int = 6
    max_tokens: int = 70


CASES = {
    "one request without drafts": Case([1], [1], 1, [40], [1]),
    "one request": Case([8], [8], 1, [40], [1]),
    "an engine without drafts": Case([1, 1, 1], [1, 1, 1], 3, [3, 15, 16], [1, 1, 1], k=0),
    "over the end of a block": Case([8, 8], [8, 8], 2, [9, 25], [1, 1]),
    "fewer drafts, and none": Case([8, 2, 1, 4], [8, 2, 1, 4], 4, [9, 100, 3, 63], [1, 1, 1, 1]),
    "a graph with more rows": Case([4, 4], [4, 4], 5, [30, 31], [1, 1]),
    "first tokens": Case([1, 1], [1, 1], 3, [0, 0], [1, 1]),
    "first tokens beside drafts": Case([8, 1, 4, 1], [8, 1, 4, 1], 6, [30, 0, 9, 6], [1, 1, 1, 7]),
    "as many requests as there can be": Case([8] * 6, [8] * 6, 6, [1, 2, 3, 4, 5, 6], [1] * 6),
    "resumed requests": Case([8, 3], [8, 3], 2, [20, 21], [20, 7]),
    "before a prompt's end, and over it": Case([4, 8, 8], [1, 1, 8], 3, [3, 3, 3], [20, 11, 9]),
    "more tokens than a draft has": Case([30, 1], [1, 1], 2, [0, 5], [30, 1]),
    "a cache without slots": Case([8, 2], [8, 2], 3, [40, 17], [1, 1], (16, 16, 64), (True, False, True)),
    "one cache": Case([8, 2], [8, 2], 3, [40, 17], [1, 1], (16,), (True,)),
    "more than a program takes at once": Case(
        [8, 1], [8, 1], 3, [16 * BLOCK + 90, 7], [1, 1], width=BLOCK + 90, max_tokens=2 * BLOCK + 9
    ),
}
WRITTEN = ("ids", "positions", "lens", "mappings", "batch_tables")


@dataclass
class Made:
    """The arguments of `step_inputs` by name, and the tables that two of them have the addresses of."""

    args: dict[str, torch.Tensor | int]
    own: list[torch.Tensor]
    batch: list[torch.Tensor] = field(default_factory=list)

    def copy(self) -> "Made":
        """With tensors of its own for all that is written."""
        batch = [table.clone() for table in self.batch]
        args = {k: v.clone() if k in WRITTEN else v for k, v in self.args.items()}
        return replace(self, args={**args, "batch_tables": addresses(batch)}, batch=batch)

    def written(self) -> list[torch.Tensor]:
        return [*(self.args[name].cpu() for name in WRITTEN[:-1]), *(table.cpu() for table in self.batch)]


def made(case, device):
    """Requests in shuffled slots, shuffled blocks, and -7 wherever something may be written."""
    torch.manual_seed(2)
    requests, groups, rows = len(case.tokens), len(case.block_sizes), case.max_requests
    slots = torch.randperm(rows)[:requests]

    def by_slot(values):
        found = torch.full((rows,), 99, dtype=torch.int32)
        found[slots] = torch.tensor(values, dtype=torch.int32)
        return found.to(device)

    def bounds(counts):
        return torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)

    starts = torch.full((rows + 1,), sum(case.tokens), dtype=torch.int32)
    starts[: requests + 1] = bounds(case.tokens)
    counts = torch.full((groups, rows), 3, dtype=torch.int32)
    for group, size in enumerate(case.block_sizes):
        for slot, before, new in zip(slots.tolist(), case.computed, case.tokens, strict=True):
            counts[group, slot] = min(-(-(before + new) // size), case.width)

    def table():
        return torch.randint(1, 9000, (rows, case.width), dtype=torch.int32).to(device)

    def unwritten(*shape, dtype):
        return torch.full(shape, -7, dtype=dtype, device=device)

    own = [table() for _ in range(groups)]
    batch = [torch.full_like(one, -7) for one in own]
    args = {
        "slots": slots.to(device),
        "bounds": starts.to(device),
        "logits_bounds": bounds(case.logits).to(device),
        "computed": by_slot(case.computed),
        "prefill": by_slot(case.prefill),
        "prompts": torch.randint(100, 9000, (rows, 100), dtype=torch.int32).to(device),
        "sampled": torch.randint(5, 99, (rows, 1)).to(device),
        "drafts": torch.randint(5, 99, (rows, case.k)).to(device),
        "tables": addresses(own),
        "strides": torch.tensor([one.stride(0) for one in own], device=device),
        "block_counts": counts.to(device),
        "block_sizes": torch.tensor(case.block_sizes, dtype=torch.int32, device=device),
        "enabled": torch.tensor(case.enabled, device=device),
        "ids": unwritten(case.max_tokens, dtype=torch.int32),
        "positions": unwritten(case.max_tokens, dtype=torch.int64),
        "lens": unwritten(rows, dtype=torch.int32),
        "mappings": unwritten(groups, case.max_tokens, dtype=torch.int64),
        "batch_tables": addresses(batch),
        "num_rows": case.num_rows,
    }
    return Made(args, own, batch)


def naive_step_inputs(
    slots, bounds, logits_bounds, computed, prefill, prompts, sampled, drafts, tables, strides, block_counts,
    block_sizes, enabled, ids, positions, lens, mappings, batch_tables, num_rows,
):  # fmt: skip
    """`step_inputs` on the CPU, request by request and cache by cache."""
    behind = len(slots)
    lens[behind:] = 0
    mappings[:, bounds[behind] :] = PAD_SLOT_ID
    for row, slot in enumerate(slots.tolist()):
        begin, end = bounds[row : row + 2].tolist()
        count = int(logits_bounds[row + 1] - logits_bounds[row])
        positions[begin:end] = computed[slot] + torch.arange(end - begin)
        lens[row] = computed[slot] + end - begin
        known = max(0, min(end - begin, int(prefill[slot] - computed[slot])))
        ids[begin : begin + known] = prompts[slot, computed[slot] : computed[slot] + known]
        if lens[row] > prefill[slot]:
            if lens[row] - count >= prefill[slot]:
                ids[end - count] = sampled[slot, 0]
            ids[end - count + 1 : end] = drafts[slot, : count - 1]
    for group, width in enumerate(strides.tolist()):
        own, out = (table_at(at[group], len(computed), width) for at in (tables, batch_tables))
        out[behind:num_rows] = 0
        size = int(block_sizes[group])
        for row, slot in enumerate(slots.tolist()):
            held = int(block_counts[group, slot])
            out[row, :held] = own[slot, :held]
            begin, end = bounds[row : row + 2].tolist()
            if enabled[group]:
                at = positions[begin:end]
                mappings[group, begin:end] = own[slot, at // size] * size + at % size
            else:
                mappings[group, begin:end] = PAD_SLOT_ID


def vllm_step_inputs(made):
    """vLLM's own five programs, as its runner launches them."""
    from vllm.v1.worker.gpu import block_table, input_batch

    a = made.args
    requests, rows = len(a["slots"]), a["num_rows"]
    starts, lens = a["bounds"][: rows + 1], a["lens"][:rows]
    following = torch.zeros((1, len(a["computed"])), dtype=torch.int32, device=starts.device)
    input_batch.prepare_prefill_inputs(
        a["ids"], following, a["slots"], starts, a["prompts"], a["prefill"], a["computed"]
    )
    input_batch.prepare_pos_seq_lens(a["slots"], starts, a["computed"], a["positions"], a["lens"])
    input_batch.combine_sampled_and_draft_tokens(
        a["ids"], a["slots"], a["sampled"], starts, lens, a["prefill"], a["drafts"], a["logits_bounds"],
        int(a["logits_bounds"][requests]),
    )  # fmt: skip
    tables = SimpleNamespace(
        num_kv_cache_groups=len(made.own), input_block_tables=made.batch, input_block_table_ptrs=a["batch_tables"],
        block_table_ptrs=a["tables"], block_table_strides=a["strides"],
        num_blocks=SimpleNamespace(gpu=a["block_counts"]), slot_mappings=a["mappings"],
        block_sizes_tensor=a["block_sizes"], slot_mapping_enabled=a["enabled"],
        dcp_sharded=torch.ones_like(a["enabled"]), cp_rank=0, cp_size=1, cp_interleave=1,
    )  # fmt: skip
    block_table.BlockTables.gather_block_tables(tables, a["slots"], rows)
    block_table.BlockTables.compute_slot_mappings(tables, a["slots"], starts, a["positions"], 1)


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.written(), other.written(), strict=True))


def is_right(case, device):
    """Whether vLLM's programs, the plain loop and ours write the same and leave the same as it was."""
    inputs = made(case, device)
    ours, vllms = inputs.copy(), inputs.copy()
    step_inputs(**ours.args)
    vllm_step_inputs(vllms)
    right = equal(ours, vllms)
    if device == "cpu":
        plain = inputs.copy()
        naive_step_inputs(**plain.args)
        right &= equal(ours, plain)
    return right


def control(case):
    """The same for a step that is one token further on, which has to be seen."""
    inputs = made(case, "cpu")
    ours, plain = inputs.copy(), inputs.copy()
    step_inputs(**ours.args)
    plain.args["computed"] = plain.args["computed"] + 1
    naive_step_inputs(**plain.args)
    return equal(ours, plain)


def main() -> None:
    """Print one JSON object."""
    import triton
    from vllm import triton_utils

    triton_utils.triton, triton_utils.tl = triton, triton.language
    found = {name: is_right(case, "cpu") for name, case in CASES.items()}
    found["entries"] = writes_entries("cpu")
    for name in BATCHES:
        found |= {f"{name}, plain {plain}": writes_batch(name, "cpu", plain) for plain in (True, False)}
    found["control"] = control(CASES["one request"])
    found["control of batches"] = writes_batch("one request", "cpu", True, wrong=1)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
