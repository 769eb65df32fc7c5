"""All of a draft in one graph: over changing batches it drafts what vLLM's own way drafts, and costs one launch."""

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import create_autospec

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu.spec_decode.dflash.cudagraph import DFlashCudaGraphManager
from vllm.v1.worker.gpu.spec_decode.dflash.speculator import DFlashSpeculator
from vllm.v1.worker.gpu.spec_decode.dspark.speculator import DSparkSpeculator

from plugin.drafts import v2_speculator
from plugin.drafts.draft_tokens import DraftTokens
from plugin.drafts.kernels import block_inputs
from plugin.drafts.v2_speculator import BlockSpeculator, MarkovSpeculator
from tests.plugin.drafts import draft_worlds
from tests.plugin.drafts.block_inputs_cases import MAX_LEN, REQUESTS
from tests.plugin.drafts.draft_worlds import HIDDEN, TAPS, K, Step, hand_on, propose, verify, world

FAMILIES = [
    pytest.param(BlockSpeculator, DFlashSpeculator, False, id="block"),
    pytest.param(MarkovSpeculator, DSparkSpeculator, False, id="markov"),
    pytest.param(MarkovSpeculator, DSparkSpeculator, True, id="markov from the anchor"),
]


def steps(count):
    """A server's steps: some batches stay for a few steps, K changes, requests join, begin anew and are prefilled."""
    generator = torch.Generator().manual_seed(1)

    def draw(low, high):
        return int(torch.randint(low, high, (), generator=generator))

    computed, found, batch, k = [0] * REQUESTS, [], None, K
    while len(found) < count:
        anew, others = batch is None or draw(0, 3) == 0, draw(0, 4) == 0
        if anew:
            batch = torch.randperm(REQUESTS, generator=generator)[: draw(1, REQUESTS + 1)].clone()
        if anew or others:
            k, prefill = draw(0, K + 1), 0 if draw(0, 4) == 0 else None
            lengths = [20 if row == prefill else draw(1, K + 2) for row in range(len(batch))]
        before, rejected = [], []
        for row, request in enumerate(batch.tolist()):
            if computed[request] + lengths[row] + K > MAX_LEN:
                computed[request] = 0
            before.append(computed[request])
            rejected.append(0 if lengths[row] > K + 1 else draw(0, lengths[row]))
            computed[request] += lengths[row] - rejected[-1]
        tokens = sum(lengths)
        taps = [torch.randint(0, 50, (tokens + 3, HIDDEN), generator=generator).double() for _ in range(TAPS)]
        made = Step(
            batch.tolist(), before, list(lengths), rejected, [draw(5, 99) for _ in batch], k, taps, batch,
            taps_in_place=draw(0, 2) == 0,
        )  # fmt: skip
        found.append(made)
        if draw(0, 9) == 0:
            found.append(
                replace(made, dummy=True, requests=list(range(len(batch))), idx_mapping=batch.clone())
            )
    return found


@pytest.mark.parametrize("eager", [False, True], ids=["graphs", "eager"])
@pytest.mark.parametrize(("owner", "stock", "from_anchor"), FAMILIES)
def test_every_draft_is_what_vllms_own_way_drafts(monkeypatch, owner, stock, from_anchor, eager):
    ours, theirs = (world(monkeypatch, each, from_anchor, eager) for each in (owner, stock))
    seen = set()
    for number, step in enumerate(steps(200)):
        before = ours.req_states.draft_tokens.clone()
        got, want = propose(ours, step), propose(theirs, step)
        if step.dummy:
            assert torch.equal(ours.req_states.draft_tokens, before), number
        else:
            assert torch.equal(got, want), number
            seen.add((step.k, len(step.requests), max(step.tokens) > K + 1))
    assert len(seen) > 20, "all of it was tried"


@pytest.mark.parametrize(("owner", "stock", "from_anchor"), FAMILIES)
def test_control_a_forgotten_input_is_seen(monkeypatch, owner, stock, from_anchor):
    ours, theirs = (world(monkeypatch, each, from_anchor) for each in (owner, stock))
    monkeypatch.setattr(ours, "_follow", lambda requests: None)
    monkeypatch.setattr(ours, "idx_mapping", torch.tensor([0, *[-1] * (REQUESTS - 1)]))
    differ = 0
    for step in steps(20):
        got, want = propose(ours, step), propose(theirs, step)
        differ += not step.dummy and not torch.equal(got, want)
    assert differ > 5


class Operations(TorchDispatchMode):
    """The names of torch's operations, views among them, that the host does within."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def operations(monkeypatch, made, k):
    """Of the host, from `propose` on, for a step of the same request as the step before."""
    taps = [torch.ones(1 + K, HIDDEN, dtype=torch.float64) for _ in range(TAPS)]
    step = Step([2], [9], [1 + K], [1], [50], k, taps, torch.tensor([2]), taps_in_place=True)
    propose(made, step)
    for name in ("query_cudagraph_manager", "context_cudagraph_manager"):
        if graphs := getattr(made, name, None):
            graphs.replayed.clear()
            monkeypatch.setattr(graphs, "run_fullgraph", graphs.replayed.append)
    monkeypatch.setattr(draft_worlds.dflash, "prepare_dflash_inputs", lambda *_: None)  # a launch
    given = verify(made, step)
    with Operations() as seen:
        hand_on(made, step, *given)
    return seen.names


@pytest.mark.parametrize(("owner", "stock", "from_anchor"), FAMILIES)
def test_a_step_like_the_last_is_one_replay_and_no_operation_of_ours(monkeypatch, owner, stock, from_anchor):
    ours, theirs = (world(monkeypatch, each, from_anchor) for each in (owner, stock))
    # What the runner gathers for the scheduler.
    assert operations(monkeypatch, ours, K) == ["index.Tensor"]
    assert len(ours.query_cudagraph_manager.replayed) == 1 and not ours.context_cudagraph_manager.replayed
    assert len(operations(monkeypatch, theirs, K)) > 15


def test_without_a_draft_only_the_context_is_replayed(monkeypatch):
    ours = world(monkeypatch, BlockSpeculator)
    names = operations(monkeypatch, ours, 0)
    assert not ours.query_cudagraph_manager.replayed and len(ours.context_cudagraph_manager.replayed) == 1
    assert len(names) < 7, "the runner blanks and gathers the drafts that are none"


@pytest.mark.parametrize(
    "other",
    [
        {"draft_logits": object()},
        {"enable_adaptive_verification": True},
        {"pcp_manager": object()},
        {"dcp_size": 2},
    ],
    ids=lambda other: next(iter(other)),
)
def test_what_does_not_stand_in_one_place_goes_vllms_own_way(monkeypatch, other):
    ours, theirs = (world(monkeypatch, each) for each in (BlockSpeculator, DFlashSpeculator))
    for made in (ours, theirs):
        made.__dict__.update(other)
        made.block_tables.gather_block_tables = lambda *_, **__: None
        made.sample_draft = lambda states, *_, made=made: made.model.pick(states)
    monkeypatch.setattr(block_inputs, "write_block_inputs", None)
    monkeypatch.setattr(block_inputs, "store_drafts", None)
    for step in steps(30):
        got, want = propose(ours, step), propose(theirs, step)
        assert step.dummy or torch.equal(got, want)
        assert ours.req_states.draft_tokens.written is None


@pytest.mark.parametrize("k", [0, K])
def test_a_backend_that_plans_on_the_host_plans_before_the_graph(monkeypatch, k):
    """Without a draft there is nothing to plan for."""
    ours = world(monkeypatch, BlockSpeculator)
    planned = []
    ours.supports_decode_metadata_update = False
    ours._build_uniform_attn_metadata = lambda **_: planned.append(len(ours.query_cudagraph_manager.replayed))
    for step in (step for step in steps(30) if step.k == k and max(step.tokens) <= K + 1 and not step.dummy):
        planned.clear()
        ours.query_cudagraph_manager.replayed.clear()
        propose(ours, step)
        assert planned == ([] if k == 0 else [0])


def test_the_runners_draft_tokens_are_where_they_were(monkeypatch):
    def stock(self, vllm_config, device):
        self.idx_mapping = torch.zeros(REQUESTS, dtype=torch.int64)

    monkeypatch.setattr(DFlashSpeculator, "__init__", stock)
    state = SimpleNamespace(draft_tokens=torch.ones(REQUESTS, K, dtype=torch.int64))
    address = state.draft_tokens.data_ptr()
    made = BlockSpeculator("config", "device", state)
    assert isinstance(state.draft_tokens, DraftTokens) and state.draft_tokens.data_ptr() == address
    assert made.req_states is state
    assert made.idx_mapping.eq(-1).all()


@pytest.mark.parametrize("adaptive", [False, True])
def test_both_kinds_of_graphs_are_captured_for_no_request(monkeypatch, adaptive):
    """Calls that vLLM's own manager takes; the second kind is what stands before a draft and no draft."""
    made = world(monkeypatch, BlockSpeculator)
    made.vllm_config, made.device, made.attn_groups = "config", "cpu", []
    propose(made, steps(1)[0])
    made.enable_adaptive_verification = adaptive
    manager = create_autospec(DFlashCudaGraphManager)

    def stock(self, mode):
        self.query_cudagraph_manager = SimpleNamespace(cudagraph_mode="full")

    monkeypatch.setattr(v2_speculator, "DFlashCudaGraphManager", manager)
    monkeypatch.setattr(DFlashSpeculator, "init_cudagraph_manager", stock)
    made.init_cudagraph_manager("as asked for")
    manager.assert_called_once_with("config", "cpu", "full", decode_query_len=1 + K)

    def captured(self):
        assert self.idx_mapping.eq(-1).all() and not self._context_only

    monkeypatch.setattr(DFlashSpeculator, "capture", captured)
    made.capture()
    assert made._last is None
    calls = made.context_cudagraph_manager.capture.call_args_list
    assert len(calls) == (0 if adaptive else 1)
    for call in calls:
        draft, *_, prepare = call.args
        assert draft(1, 4, {}, {}, None, CUDAGraphMode.NONE) is None
        assert prepare == made._prepare_graph_forward
