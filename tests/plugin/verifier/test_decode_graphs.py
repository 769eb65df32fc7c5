"""What goes on behind the model in a decode graph, through vLLM's own capture and replay: which graphs, in which order,
and what a replay leaves where."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu import cudagraph_utils
from vllm.v1.worker.gpu.cudagraph_utils import (
    BatchExecutionDescriptor,
    CudaGraphManager,
    ModelCudaGraphManager,
)

from plugin.verifier import decode_graphs
from plugin.verifier.decode_graphs import MOST_LOGITS, DecodeGraphManager, SampledGraphs, is_sampled
from tests.plugin.vllm_hooks.v2.test_runner import manager

FULL, WIDTH, VOCAB = CUDAGraphMode.FULL, 4, 7


class Sampling:
    """Logits are the hidden states' first value, in the same place for as many tokens; all that is asked is told."""

    def __init__(self):
        self.told, self.logits = [], {}

    def run(self, hidden_states, num_reqs):
        self.told.append(("run", len(hidden_states), num_reqs))
        logits = self.logits.setdefault(len(hidden_states), torch.zeros(len(hidden_states), VOCAB))
        return logits.copy_(hidden_states[:, :1].expand_as(logits))

    def reserve(self, num_tokens):
        self.told.append(("reserve", num_tokens))

    def stage(self):
        self.told.append("stage")


class Graph:
    """A replay does what was captured once more."""

    def __init__(self, forward, told):
        self.forward, self.told = forward, told

    def replay(self):
        self.told.append("replay")
        self.forward(CUDAGraphMode.NONE)


@pytest.fixture
def capture(monkeypatch):
    """`capture(sizes, sampling, taps)`: a manager that has captured on a CPU, and its input ids. vLLM's lower manager,
    which needs a GPU, is a loop; its upper one makes the forward passes."""
    monkeypatch.setattr(decode_graphs, "weak_ref_tensor", lambda tensor: tensor)
    monkeypatch.setattr(cudagraph_utils, "prepare_inputs_to_capture", lambda *_, **__: ({}, {}))
    monkeypatch.setattr(cudagraph_utils, "set_forward_context", lambda *_, **__: nullcontext())

    def captured(self, create_forward_fn, progress_bar_desc):
        for desc in self._capture_descs[FULL]:
            create_forward_fn(desc, warmup=True)(CUDAGraphMode.NONE)
            forward = create_forward_fn(desc, warmup=False)
            forward(CUDAGraphMode.NONE)
            self.graphs[desc] = Graph(forward, getattr(self.sampling, "told", []))

    monkeypatch.setattr(CudaGraphManager, "capture", captured)

    def run(sizes, sampling, taps=0, **options):
        made = manager(monkeypatch, sizes=sizes, mode=CUDAGraphMode.FULL_DECODE_ONLY, **options)
        made.sampling = sampling
        ids = torch.arange(max(sizes)).int()

        def model(input_ids, **_):
            states = input_ids[:, None].float() * torch.ones(WIDTH)
            return (states, [states + 1 + i for i in range(taps)]) if taps else states

        made.capture(
            model,
            SimpleNamespace(prepare_dummy_inputs=lambda num_reqs, num_tokens: {}),
            SimpleNamespace(input_ids=ids, positions=ids, is_padding=torch.zeros(max(sizes), dtype=torch.bool)),
            None, None, [], None, use_aux_hidden_state_outputs=taps > 0,
        )  # fmt: skip
        assert list(made.graphs) == made._capture_descs[FULL]
        return made, ids

    return run


def test_small_graphs_go_on_behind_the_model_and_the_largest_hold_the_memory_that_those_need(capture):
    sampling = Sampling()
    made, _ = capture((8, 256, 512), sampling, k=7, max_num_seqs=64)
    descs = made._capture_descs[FULL]
    large = [desc for desc in descs if desc.num_tokens > MOST_LOGITS]
    assert large and large == descs[: len(large)]
    wanted = []
    for desc in descs:  # each warms up, and is captured
        run = "run", desc.num_tokens, desc.num_reqs
        wanted += 2 * [run if desc.num_tokens <= MOST_LOGITS else ("reserve", 256)]
    assert sampling.told == wanted
    assert set(made.logits) == set(descs) - set(large)


@pytest.mark.parametrize("taps", [0, 2])
def test_a_replay_gives_what_vllms_gives_and_its_logits_in_the_same_places_every_time(capture, taps):
    sampling = Sampling()
    made, ids = capture((4, 8, 16), sampling, taps, k=3, max_num_seqs=4)
    stock, stock_ids = capture((4, 8, 16), None, taps, k=3, max_num_seqs=4)
    seen = {}
    for turn in range(3):
        for desc in made._capture_descs[FULL]:
            ids.add_(1 + turn)
            stock_ids.copy_(ids)
            sampling.told.clear()
            found, wanted = made.run_fullgraph(desc), ModelCudaGraphManager.run_fullgraph(stock, desc)
            assert sampling.told == ["stage", "replay", ("run", desc.num_tokens, desc.num_reqs)]
            hidden, other = (found[0], wanted[0]) if taps else (found, wanted)
            assert torch.equal(hidden, other)
            for one, tap in zip(*(each[1] if taps else () for each in (found, wanted)), strict=True):
                assert torch.equal(one, tap)
            assert made.replayed.hidden_states is hidden
            assert torch.equal(made.replayed.logits, hidden[:, :1].expand(-1, VOCAB))
            assert seen.setdefault(desc, found) is found


def test_a_graph_without_logits_is_replayed_without_a_batch(capture):
    sampling = Sampling()
    made, _ = capture((8, 512), sampling, k=7, max_num_seqs=64)
    desc = made._capture_descs[FULL][0]
    assert desc.num_tokens == 512
    for _ in range(2):
        sampling.told.clear()
        hidden = made.run_fullgraph(desc)
        assert sampling.told[0] == "replay"
        assert made.replayed.hidden_states is hidden
        assert made.replayed.logits is None


def test_without_sampling_it_is_vllms(capture):
    made, _ = capture((4, 8, 16), None, 1, k=3, max_num_seqs=4)
    desc = made._capture_descs[FULL][0]
    assert made.logits == {}
    first, second = made.run_fullgraph(desc), made.run_fullgraph(desc)
    assert first[0] is not second[0]
    assert made.replayed is None


def test_graphs_of_anything_but_decode_steps_end_with_the_model():
    assert is_sampled(BatchExecutionDescriptor(FULL, 8, 1, uniform_token_count=8))
    assert is_sampled(BatchExecutionDescriptor(FULL, MOST_LOGITS, 40, max_query_len=8))
    assert not is_sampled(BatchExecutionDescriptor(FULL, MOST_LOGITS + 8, 33, uniform_token_count=8))
    assert not is_sampled(BatchExecutionDescriptor(FULL, 8, 8))  # any mixture, long prefills among it


def test_contract_the_forward_pass_is_made_above_and_captured_below():
    order = [DecodeGraphManager, ModelCudaGraphManager, SampledGraphs, CudaGraphManager]
    assert list(DecodeGraphManager.__mro__[:4]) == order
