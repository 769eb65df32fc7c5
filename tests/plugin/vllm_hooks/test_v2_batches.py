"""A batch like the last one takes its tensors: every field equals what vLLM would have made anew."""

import sys
from dataclasses import fields
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu import model_runner
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor
from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers
from vllm.v1.worker.gpu.model_runner import BatchReqState, GPUModelRunner

from plugin.vllm_hooks import v2_batches

K, SLOTS, TOKENS = 3, 6, 40


def positions_and_lengths(idx_mapping, query_start_loc, computed, positions, seq_lens):
    """vLLM's kernel of this name, request by request."""
    seq_lens[len(idx_mapping) :] = 0
    for row, slot in enumerate(idx_mapping.tolist()):
        begin, end = query_start_loc[row : row + 2].tolist()
        positions[begin:end] = computed[slot] + torch.arange(end - begin)
        seq_lens[row] = computed[slot] + end - begin


def sampled_and_drafts(
    input_ids,
    idx_mapping,
    sampled,
    query_start_loc,
    seq_lens,
    prefill_len,
    drafts,
    cu_logits,
    num_logits,
    _=1,
):
    """vLLM's kernel of this name, request by request; here nobody prefills."""
    indices = torch.empty(num_logits, dtype=torch.int64)
    for row, slot in enumerate(idx_mapping.tolist()):
        begin, end = cu_logits[row : row + 2].tolist()
        count, last = end - begin, int(query_start_loc[row + 1])
        indices[begin:end] = torch.arange(last - count, last)
        input_ids[last - count] = sampled[slot]
        input_ids[last - count + 1 : last] = drafts[slot, : count - 1]
    return indices


def expanded(idx_mapping, total, cu_logits, _):
    counts = (cu_logits[1:] - cu_logits[:-1]).long()
    local = torch.cat([torch.arange(int(count), dtype=torch.int32) for count in counts])
    return idx_mapping.repeat_interleave(counts, output_size=total), local


@pytest.fixture
def sent(monkeypatch):
    """What is copied to the device, in kernels' place plain loops."""
    found = []
    stock = model_runner.async_tensor_h2d

    def counted(data, **kwargs):
        found.append(data)
        return stock(data, **kwargs)

    monkeypatch.setattr(model_runner, "async_tensor_h2d", counted)
    monkeypatch.setattr(model_runner, "prepare_pos_seq_lens", positions_and_lengths)
    monkeypatch.setattr(model_runner, "combine_sampled_and_draft_tokens", sampled_and_drafts)
    monkeypatch.setattr(model_runner, "expand_idx_mapping", expanded)
    monkeypatch.setattr(model_runner, "prepare_prefill_inputs", lambda *_: None)
    v2_batches.tensors_of_an_unchanged_batch()
    return found


def runner(ours=True):
    """What `prepare_inputs` reads of a runner."""
    held = {"num_new_sampled_tokens_per_step": 1} | ({"cross_kv_before_decoder": True} if ours else {})
    return SimpleNamespace(
        input_buffers=InputBuffers(SLOTS, TOKENS, torch.device("cpu")), device=torch.device("cpu"),
        max_num_reqs=SLOTS, decode_query_len=1 + K, model_state=SimpleNamespace(**held), fast_prefill=None,
        adaptive_verification=None, pcp_manager=None, model_config=SimpleNamespace(rswa_window=None),
        req_states=SimpleNamespace(
            num_computed_tokens=SimpleNamespace(gpu=torch.zeros(SLOTS, dtype=torch.int32)),
            num_computed_tokens_np=np.zeros(SLOTS, np.int32), last_sampled_tokens=torch.zeros(SLOTS, 1),
            prefill_len=SimpleNamespace(gpu=torch.ones(SLOTS, dtype=torch.int32)),
            draft_tokens=torch.zeros(SLOTS, K, dtype=torch.int64), next_prefill_tokens=None,
            all_token_ids=SimpleNamespace(gpu=None),
        ),
    )  # fmt: skip


def step(slots, drafts, step_number, has_prefill=False, graph=None):
    """State, descriptor and scheduler's output of a step of the requests in `slots`, with `drafts` tokens each."""
    count, tokens = len(slots), np.array(drafts, np.int32) + 1
    state = BatchReqState(
        req_ids=[f"r{slot}" for slot in slots],
        num_scheduled_tokens=tokens,
        num_tokens=int(tokens.sum()),
        num_draft_tokens_np=np.array(drafts, np.int32) if any(drafts) else None,
        idx_mapping_np=np.array(slots),
        prefill_len_np=np.ones(count, np.int32),
        num_computed_prefill_tokens_np=np.ones(count, np.int32),
        is_prefilling_np=np.full(count, has_prefill),
        max_seq_len_np=None,
        has_prefill=has_prefill,
        prefill_runs_as_decode_np=None,
        decode_graph_eligible=True,
    )
    desc = BatchExecutionDescriptor(
        CUDAGraphMode.FULL, graph or int(tokens.sum()), num_reqs=SLOTS if graph else count
    )
    scheduled = SimpleNamespace(
        scheduled_spec_decode_tokens={f"r{s}": [-1] * d for s, d in zip(slots, drafts, strict=True) if d},
        has_structured_output_requests=bool(step_number % 2),
    )
    return scheduled, state, desc, 0


def advance(runners, generator):
    """What the device and the scheduler do between two steps."""
    taken = torch.randint(1, 1 + K, (SLOTS,), generator=generator, dtype=torch.int32)
    ids = torch.randint(5, 99, (SLOTS, 1 + K), generator=generator)
    for each in runners:
        states = each.req_states
        states.num_computed_tokens.gpu += taken
        states.num_computed_tokens_np += 1 + K
        states.last_sampled_tokens.copy_(ids[:, :1])
        states.draft_tokens.copy_(ids[:, 1:])


def same(ours, stock):
    for field in fields(InputBatch):
        one, other = getattr(ours, field.name), getattr(stock, field.name)
        if isinstance(other, np.ndarray | torch.Tensor):
            assert one.dtype == other.dtype and one.tolist() == other.tolist(), field.name
        else:
            assert one == other, field.name


STEPS = [
    ([2, 0], [0, 0]), ([2, 0], [0, 0]), ([2, 0], [0, 0]),  # no drafts
    ([2, 0], [K, K]), ([2, 0], [K, K]), ([2, 0], [K, 1]), ([2, 0], [K, 1]),
    ([0, 2], [K, K]), ([0, 2], [K, K]),  # the same requests in another order
    ([0, 2, 5], [K, K, K]), ([0, 2, 5], [K, K, K]), ([5], [K]), ([5], [K]),
]  # fmt: skip
UNCHANGED = [1, 2, 4, 6, 8, 10, 12]


@pytest.mark.parametrize("graph", [None, 24], ids=["as large as the batch", "padded graph"])
def test_every_field_is_what_vllm_makes_anew_and_nothing_is_sent_for_an_unchanged_batch(sent, graph):
    generator = torch.Generator().manual_seed(0)
    hooked, plain = runner(), runner()
    quiet = []
    for number, (slots, drafts) in enumerate(STEPS):
        advance((hooked, plain), generator)
        args = step(slots, drafts, number, graph=graph)
        sent.clear()
        ours = GPUModelRunner.prepare_inputs(hooked, *args)
        quiet += [] if sent else [number]
        same(ours, GPUModelRunner.prepare_inputs.__wrapped__(plain, *args))
        for name in ("input_ids", "positions", "seq_lens", "query_start_loc"):
            assert torch.equal(getattr(hooked.input_buffers, name), getattr(plain.input_buffers, name)), name
    assert quiet == UNCHANGED


def test_a_dummy_batch_and_a_prefill_between_two_equal_steps_have_them_sent_again(sent):
    made = runner()
    args = step([1, 3], [K, K], 0)
    GPUModelRunner.prepare_inputs(made, *args)
    want = made.input_buffers.query_start_loc.clone()
    InputBatch.make_dummy(3, 7, made.input_buffers)
    sent.clear()
    GPUModelRunner.prepare_inputs(made, *args)
    assert sent
    assert torch.equal(made.input_buffers.query_start_loc, want)
    GPUModelRunner.prepare_inputs(made, *step([1, 3], [K, K], 0, has_prefill=True))
    sent.clear()
    GPUModelRunner.prepare_inputs(made, *args)
    assert sent


def test_other_models_and_adaptive_verification_stay_with_vllm(sent, monkeypatch):
    made = runner(ours=False)
    GPUModelRunner.prepare_inputs(made, *step([1], [0], 0))
    sent.clear()
    GPUModelRunner.prepare_inputs(made, *step([1], [0], 0))
    assert sent
    made = runner()
    made.adaptive_verification = object()
    assert v2_batches._key(made, step([1], [0], 0)[1], None) is None


def test_parameters_are_sent_where_requests_are_added(monkeypatch):
    module = ModuleType("vllm.v1.worker.gpu.model_runner")

    class GPUModelRunner:
        def add_requests(self, scheduler_output):
            self.ran = True

    module.GPUModelRunner = GPUModelRunner
    monkeypatch.setitem(sys.modules, module.__name__, module)
    v2_batches.parameters_of_new_requests_only()

    def runs(new, **state):
        made = GPUModelRunner()
        made.ran, made.model_state = False, SimpleNamespace(**state)
        made.add_requests(SimpleNamespace(scheduled_new_reqs=new))
        return made.ran

    assert runs(["request"], cross_kv_before_decoder=True)
    assert not runs([], cross_kv_before_decoder=True)
    assert runs([])
