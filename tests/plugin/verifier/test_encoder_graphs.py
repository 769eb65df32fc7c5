"""The encoder behind vLLM's own graph manager, on the CPU: what is copied into a graph's buffers and what comes out.

Capture and replay need a GPU; here a replay runs the captured forward on the buffers as they are then.
"""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from vllm.v1.worker.encoder_cudagraph import BudgetGraphMetadata, EncoderCudaGraphManager

from plugin.verifier.encoder_graphs import EncoderGraphs

CPU = torch.device("cpu")


class FakeEncoder:
    """States `[num_tokens, 3]`: the id, its position, and the sum of its prompt's ids, which shows who attends whom."""

    hidden_size = 3
    device = CPU

    def __init__(self):
        self.calls = []

    def __call__(self, ids, positions, cu_seqlens, max_len):
        bounds = cu_seqlens.tolist()
        self.calls.append((len(ids), bounds, max_len))
        assert bounds == sorted(bounds)
        assert bounds[-1] == len(ids)
        assert max_len >= max(b - a for a, b in pairwise(bounds))
        sums = torch.cat([ids[a:b].sum().expand(b - a) for a, b in pairwise(bounds)])
        return torch.stack((ids, positions, sums), dim=1).float()


class FakeModel(EncoderGraphs):
    def __init__(self):
        self.encoder = FakeEncoder()


@pytest.fixture
def manager():
    """vLLM's manager with budgets of 8, 16 and 32 tokens for 4 prompts."""
    config = SimpleNamespace(
        compilation_config=SimpleNamespace(
            encoder_cudagraph_token_budgets=[8, 16, 32],
            encoder_cudagraph_max_vision_items_per_batch=4,
            encoder_cudagraph_max_frames_per_batch=None,
        ),
        model_config=SimpleNamespace(
            multimodal_config=SimpleNamespace(
                get_limit_per_prompt=lambda modality: 1, mm_encoder_tp_mode="weights"
            )
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )
    model = FakeModel()
    made = EncoderCudaGraphManager(config, CPU, torch.float32, model)
    made.graph_pool = "a pool"
    for budget in made.token_budgets:
        values = model.prepare_encoder_cudagraph_capture_inputs(
            budget, made.max_batch_size, made.max_frames_per_batch, CPU, torch.float32
        ).values
        model.encoder_cudagraph_forward(values)
        output = torch.zeros(budget, 3)

        def replay(values=values, output=output):
            output.copy_(model.encoder_cudagraph_forward(values))

        made._get_graph_set()[budget] = BudgetGraphMetadata(
            budget,
            made.max_batch_size,
            made.max_frames_per_batch,
            SimpleNamespace(replay=replay),
            values,
            output,
        )
    model.encoder.calls.clear()
    return made


def prompts(*lengths):
    return [torch.arange(1, n + 1) + 100 * i for i, n in enumerate(lengths)]


def check(manager, *lengths):
    asked = prompts(*lengths)
    states = manager.execute({"text": asked})
    assert len(states) == len(asked)
    for prompt, got in zip(asked, states, strict=True):
        want = torch.stack((prompt, torch.arange(len(prompt)), prompt.sum().expand(len(prompt))), dim=1)
        assert torch.equal(got, want.float())
    return [tokens for tokens, _, _ in manager.model.encoder.calls]


@pytest.mark.parametrize(
    ("lengths", "tokens"),
    [
        ((5,), [8]),
        ((8,), [8]),  # fills the graph: nothing is padding
        ((1, 2, 3), [8]),
        ((7, 1, 9, 3), [32]),
        ((32,), [32]),
        ((33,), [33]),  # beyond the largest: without a graph
    ],
)
def test_prompts_go_through_the_smallest_graph_that_holds_them(manager, lengths, tokens):
    assert check(manager, *lengths) == tokens


def test_more_prompts_than_a_graph_takes_and_longer_ones_than_any(manager):
    sizes = check(manager, 3, 40, 1, 2, 4, 2, 50, 1)
    assert {40, 50} <= set(sizes)
    assert manager.graph_hits == 6
    assert manager.graph_misses == 2


def test_a_replay_does_not_see_the_batch_before(manager):
    check(manager, 4, 3, 1)
    check(manager, 2)
    assert manager.model.encoder.calls[-1][1] == [
        0,
        2,
        8,
        8,
        8,
        8,
    ]  # the prompt, its padding, and empty sequences


def test_states_outlive_the_next_replay(manager):
    first = manager.execute({"text": prompts(3)})[0]
    kept = first.clone()
    manager.execute({"text": [torch.tensor([9, 9])]})
    assert torch.equal(first, kept)


def test_the_manager_asks_for_our_modality(manager):
    assert manager.supports_modality("text")
    assert not manager.supports_modality("image")
