"""The encoder behind vLLM's own graph manager, on the CPU: what is copied into a graph's buffers and what comes out."""

import pytest
import torch

from tests.plugin.verifier.encoder.graph_fakes import captured_manager, prompts, states_of


@pytest.fixture
def manager():
    return captured_manager()


def check(manager, *lengths):
    asked = prompts(*lengths)
    states = manager.execute({"text": asked})
    assert len(states) == len(asked)
    for prompt, got in zip(asked, states, strict=True):
        assert torch.equal(got, states_of(prompt))
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
