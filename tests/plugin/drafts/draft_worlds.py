"""A speculator of vLLM's V2 runner on the CPU, its model and its graphs being loops: what the draft tests drive.

A draft's token is a sum over the context that stands in the cache, over the block's own inputs and where they stand, so
that whatever is stale, misplaced or forgotten shows in a token. A graph is run where it would be replayed.
"""

from dataclasses import dataclass
from types import SimpleNamespace

import torch
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor
from vllm.v1.worker.gpu.input_batch import InputBuffers
from vllm.v1.worker.gpu.spec_decode.dflash import speculator as dflash

from plugin.drafts.draft_tokens import DraftTokens
from plugin.drafts.kernels import block_inputs
from plugin.drafts.v2_speculator import OneGraphSpeculator
from tests.plugin.drafts.block_inputs_cases import MASK, MAX_LEN, PAGE, REQUESTS, TOKENS, loop, slot

K, TAPS, HIDDEN = 3, 2, 2


@dataclass
class Step:
    """A verified step: its requests by slot, and of each the tokens computed before, those of the step, how many of
    them were rejected and the last token; then the drafts that are asked for."""

    requests: list[int]
    before: list[int]
    tokens: list[int]
    rejected: list[int]
    sampled: list[int]
    k: int
    taps: list[torch.Tensor]
    idx_mapping: torch.Tensor
    dummy: bool = False
    taps_in_place: bool = False


GRAPHS = (1, 2, 4, REQUESTS)
"""Requests of the graphs."""


def prepare(
    buffers, query_slots, context_positions, context_slots, sample_indices, sample_pos, sample_requests, temperature,
    seeds, batch, num_sampled, num_rejected, last_sampled, next_prefill_tokens, temperatures, all_seeds, table,
    block_size, cp_rank, cp_size, cp_interleave, mask, length, steps, max_reqs, max_tokens, max_len, from_anchor,
):  # fmt: skip
    """vLLM's `prepare_dflash_inputs`, request by request."""
    query_slots[batch.num_reqs * length :] = -1
    buffers.query_start_loc[batch.num_reqs :] = batch.num_reqs * length
    buffers.seq_lens[batch.num_reqs :] = 0
    sample_indices[batch.num_reqs * steps :] = 0
    for row in range(batch.num_reqs):
        begin, end = batch.query_start_loc[row : row + 2].tolist()
        valid = end - int(num_rejected[row])
        for token in range(begin, end):
            position = int(batch.positions[token]) if token < valid else 0
            context_positions[token] = position
            context_slots[token] = slot(table[row], position) if token < valid else -1
        behind = int(batch.positions[valid - 1]) + 1
        for i in range(length):
            at = row * length + i
            buffers.input_ids[at] = mask if i else int(last_sampled[batch.idx_mapping[row]])
            buffers.positions[at] = min(behind + i, max_len - 1)
            query_slots[at] = slot(table[row], behind + i)
        for i in range(steps):
            sample_indices[row * steps + i] = row * length + length - steps + i
        buffers.query_start_loc[row] = row * length
        buffers.seq_lens[row] = min(behind + length, max_len)


def store(drafted, requests, out):
    """`store_drafts`, row by row."""
    for row, request in enumerate(requests.tolist()):
        if request >= 0:
            torch.Tensor.__setitem__(out, request, drafted[row])


class Graphs:
    """A manager whose graphs are run, and noted, when they are replayed; none in an `eager` engine."""

    def __init__(self, speculator, eager, drafts=True):
        self.speculator, self.eager, self.drafts, self.replayed = speculator, eager, drafts, []

    def dispatch(self, num_reqs, num_tokens, uniform, *args, **kwargs):
        assert num_tokens == num_reqs * uniform
        if self.eager:
            return BatchExecutionDescriptor(CUDAGraphMode.NONE, num_tokens, num_reqs)
        rows = next(rows for rows in GRAPHS if rows >= num_reqs)
        return BatchExecutionDescriptor(CUDAGraphMode.FULL, rows * uniform, rows, uniform_token_count=uniform)

    def run_fullgraph(self, graph):
        self.replayed.append(graph)
        self.speculator._prepare_graph_forward(graph.num_reqs, None)
        if self.drafts:
            self.speculator._generate_draft(graph.num_reqs, graph.num_tokens, None, None, None)


class Model:
    """`HIDDEN` numbers a token; of the context the cache keeps one a slot."""

    def __init__(self, speculator):
        self.speculator = speculator
        self.cache = torch.zeros(PAGE + REQUESTS * MAX_LEN, dtype=torch.float64)

    def combine_hidden_states(self, taps):
        return taps.unflatten(-1, (TAPS, HIDDEN)).sum(1)

    def project_taps(self, taps, out):
        out.copy_(self.combine_hidden_states(taps))

    def precompute_and_store_context_kv(self, states, positions, slots):
        if slots is None:  # an eager dummy batch's
            return
        for state, position, where in zip(states, positions.tolist(), slots.tolist(), strict=True):
            if where >= 0:
                self.cache[where] = state.sum() * (1 + position)

    def block_states(self, num_tokens, *_):
        """For `_run_model`: reads what stands in the speculator's buffers."""
        made, states = self.speculator, torch.zeros(num_tokens, HIDDEN, dtype=torch.float64)
        block, length = made.input_buffers, made.num_query_per_req
        slots, table = made.block_tables.slot_mappings[0], made.block_tables.input_block_tables[0]
        for row in range(num_tokens // length):
            begin, end = block.query_start_loc[row : row + 2].tolist()
            seen = [slot(table[row], position) for position in range(int(block.seq_lens[row]) - length)]
            context = sum(float(self.cache[where]) for where in seen if where >= 0)
            for at in range(begin, end):
                states[at, 0] = context + 7 * int(block.input_ids[at]) + 13 * int(block.positions[at])
                states[at, 1] = int(slots[at])
        return states

    def compute_draft_logits(self, states):
        return states

    def pick(self, states):
        return states.sum(-1).round().long() % 100_003

    def pick_block(self, hidden, anchors, out):
        out.copy_(self.pick(hidden) + anchors[:, None])
        return True


def world(monkeypatch, owner, from_anchor=False, eager=False):
    """A speculator of the class `owner`, ours or vLLM's, with the state of a runner around it."""
    monkeypatch.setattr(dflash, "prepare_dflash_inputs", prepare)
    monkeypatch.setattr(dflash, "build_slot_mappings_by_layer", lambda *_: None)
    monkeypatch.setattr(block_inputs, "write_block_inputs", loop)
    monkeypatch.setattr(block_inputs, "store_drafts", store)
    made = owner.__new__(owner)
    drafts, length = torch.zeros(REQUESTS, K, dtype=torch.int64), K + int(not from_anchor)
    made.req_states = SimpleNamespace(
        num_computed_tokens=SimpleNamespace(gpu=torch.zeros(REQUESTS, dtype=torch.int32)),
        last_sampled_tokens=torch.zeros(REQUESTS, 1, dtype=torch.int64), draft_tokens=drafts,
    )  # fmt: skip
    device = torch.device("cpu")
    made.model = model = Model(made)

    def sample(num_reqs, states):
        """vLLM's DSpark, by the rows that its inputs name."""
        rows = states[made.sample_indices[: num_reqs * K]].view(num_reqs, K, HIDDEN)
        model.pick_block(
            rows, made.input_buffers.input_ids[: num_reqs * length : length], made.draft_tokens[:num_reqs]
        )

    tables = SimpleNamespace(
        slot_mappings=torch.zeros(1, TOKENS, dtype=torch.int64), block_sizes=[PAGE], cp_rank=0, cp_interleave=1,
        input_block_tables=[torch.zeros(REQUESTS, MAX_LEN // PAGE, dtype=torch.int32)],
    )  # fmt: skip
    rows = torch.zeros(REQUESTS * K, dtype=torch.int64)
    made.__dict__.update(
        hidden_states=torch.zeros(TOKENS, HIDDEN, dtype=torch.float64), block_tables=tables,
        taps=torch.zeros(TOKENS, TAPS * HIDDEN, dtype=torch.float64), idx_mapping=torch.full((REQUESTS,), -1),
        draft_tokens=torch.zeros(REQUESTS, K, dtype=torch.int64), input_buffers=InputBuffers(REQUESTS, TOKENS, device),
        target_input_buffers=InputBuffers(REQUESTS, TOKENS, device), temperature=None, seeds=None,
        context_positions=torch.zeros(TOKENS, dtype=torch.int64), sample_indices=rows, sample_pos=rows.clone(),
        sample_idx_mapping=rows.clone(), sample_col=rows.clone(), draft_logits=None, acceptance_estimator=None,
        enable_adaptive_verification=False, use_confidence_head=False, pcp_manager=None, dcp_size=1, dp_size=1,
        dp_rank=0,
        _context_slot_mappings=torch.full((1, TOKENS), -1), _layer_group_idx=None, _group_causal=False,
        draft_kv_cache_group_id=0, draft_kv_cache_group_ids=[0], kv_cache_config=None, num_query_per_req=length,
        num_speculative_steps=K, max_num_reqs=REQUESTS, max_num_tokens=TOKENS, max_model_len=MAX_LEN,
        sample_from_anchor=from_anchor, parallel_drafting_token_id=MASK, supports_decode_metadata_update=True,
        _build_uniform_attn_metadata=lambda **_: None, _prepare_eplb_forward=lambda _: None, _draft_topk=None,
        _run_model=model.block_states, query_cudagraph_manager=Graphs(made, eager),
    )  # fmt: skip
    if issubclass(owner, OneGraphSpeculator):
        made.req_states.draft_tokens = drafts.as_subclass(DraftTokens)
        made.context_cudagraph_manager = Graphs(made, eager, drafts=False)
        made._context_only, made.followed, made._last = False, None, None
    else:
        made.sample_draft = lambda states, *_: model.pick(states)
        made._sample_sequential = sample
    return made


def verify(made, step):
    """What a step leaves behind when the runner has sampled: its batch, and the taps as its graph hands them on."""
    state, count, tokens = made.req_states, len(step.requests), sum(step.tokens)
    target = made.target_input_buffers
    bounds = torch.tensor([0, *step.tokens]).cumsum(0)
    target.query_start_loc.fill_(tokens)[: count + 1] = bounds
    table = made.block_tables.input_block_tables[0]
    for row, request in enumerate(step.requests):
        begin, before = int(bounds[row]), step.before[row]
        target.positions[begin : begin + step.tokens[row]] = torch.arange(before, before + step.tokens[row])
        # No two requests share a block; a dummy batch has none.
        table[row] = 0 if step.dummy else 1 + request * (MAX_LEN // PAGE) + torch.arange(MAX_LEN // PAGE)
        if not step.dummy:
            state.num_computed_tokens.gpu[request] = before + step.tokens[row] - step.rejected[row]
            state.last_sampled_tokens[request] = step.sampled[row]
    taps = step.taps
    if step.taps_in_place and isinstance(made, OneGraphSpeculator):
        made.taps[: len(taps[0])] = torch.cat(taps, dim=-1)
        taps = [made.taps[: len(taps[0])]]
    batch = SimpleNamespace(
        num_reqs=count, num_tokens=tokens, idx_mapping=step.idx_mapping, positions=target.positions,
        query_start_loc=target.query_start_loc,
        seq_lens_cpu_upper_bound=torch.tensor(step.before) + torch.tensor(step.tokens),
    )  # fmt: skip
    return batch, taps, torch.tensor(step.rejected)


def hand_on(made, step, batch, taps, rejected):
    """What vLLM's runner does about the drafts then; returns what the scheduler gets, `[num_requests, k]`."""
    state = made.req_states
    drafted = made.propose(
        batch, {}, {}, taps[0], taps, None, rejected, state.last_sampled_tokens, None, None, None,
        dummy_run=step.dummy, num_speculative_tokens=None if step.dummy else step.k,
    )  # fmt: skip
    if step.dummy:
        return None
    if isinstance(made, OneGraphSpeculator) and made.in_graph:
        assert drafted.shape == (len(step.requests), step.k)
    # The lines of `sample_tokens`.
    if step.k < K:
        drafted[:, step.k :] = -1
    state.draft_tokens[batch.idx_mapping] = drafted
    return state.draft_tokens[batch.idx_mapping, : step.k]


def propose(made, step):
    """Both."""
    return hand_on(made, step, *verify(made, step))
