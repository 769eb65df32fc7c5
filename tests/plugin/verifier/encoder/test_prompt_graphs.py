"""Prompts that one captured graph takes: laid out as vLLM's manager lays them out, and no others."""

import random
from types import SimpleNamespace

import pytest
import torch
from vllm.v1.worker.gpu import buffer_utils

from plugin.verifier.encoder.prompt_graphs import PromptGraphs, one_graph
from plugin.verifier.model_state import T5Gemma2ModelState
from tests.plugin.verifier.encoder.graph_fakes import captured_manager, prompts, states_of


@pytest.fixture
def manager(monkeypatch):
    monkeypatch.setattr(buffer_utils, "is_uva_available", lambda: False)
    return captured_manager()


def through_vllms(manager, asked):
    """The sizes that vLLM's manager runs, and its states."""
    manager.model.encoder.calls.clear()
    states = manager.execute({"text": asked})
    return [tokens for tokens, _, _ in manager.model.encoder.calls], states


LENGTHS = [(5,), (8,), (1, 2, 3), (7, 1, 9, 3), (32,), (16, 16), (4, 4, 8, 16), (3, 9), (8, 9), (2, 8, 9)]


ONE = [lengths for lengths in LENGTHS if one_graph(lengths, [8, 16, 32], 4)]


@pytest.mark.parametrize("lengths", ONE)
def test_the_graph_reads_what_vllms_manager_has_it_read(manager, lengths):
    """Of prompts in the manager's order."""
    asked, graphs = sorted(prompts(*lengths), key=len), PromptGraphs(manager)
    inputs = manager.budget_graphs["default"][one_graph(lengths, [8, 16, 32], 4)].input_buffers
    found = []
    for run in (lambda: manager.execute({"text": asked}), lambda: graphs.run(asked)):
        run()
        found.append({key: inputs[key].tolist() for key in ("ids", "positions", "cu_seqlens")})
        inputs["ids"].fill_(7)
        inputs["positions"].fill_(7)
        inputs["cu_seqlens"][1:-1] = 7
    assert found[0] == found[1]


@pytest.mark.parametrize("lengths", LENGTHS)
def test_states_are_those_of_each_prompt_in_the_order_given(manager, lengths):
    asked = prompts(*lengths)
    states = PromptGraphs(manager).run(asked)
    assert (states is not None) == (lengths in ONE)
    if states is not None:
        assert torch.equal(states, torch.cat([states_of(prompt) for prompt in asked]))
        assert manager.graph_hits == len(asked)


def test_one_graph_is_taken_exactly_where_vllms_manager_takes_one(manager):
    generator = random.Random(0)
    counted = {True: 0, False: 0}
    for _ in range(400):
        lengths = [generator.randint(1, 36) for _ in range(generator.randint(1, 6))]
        sizes, _ = through_vllms(manager, prompts(*lengths))
        size = one_graph(lengths, manager.token_budgets, manager.max_batch_size)
        assert (size is not None) == (len(sizes) == 1 and max(lengths) <= 32), lengths
        if size is not None:
            assert sizes == [size]
        counted[size is not None] += 1
    assert min(counted.values()) > 50


def test_a_replay_does_not_see_the_batch_before(manager):
    graphs = PromptGraphs(manager)
    graphs.run(prompts(4, 3, 1))
    assert torch.equal(graphs.run(prompts(2)), states_of(prompts(2)[0]))
    assert manager.model.encoder.calls[-1][1] == [0, 2, 8, 8, 8, 8]


@pytest.fixture
def state(manager):
    """A model state with vLLM's manager behind it."""
    made = T5Gemma2ModelState.__new__(T5Gemma2ModelState)
    made._prompt_graphs = None
    made.encoder_runner = SimpleNamespace(cudagraph_manager=manager)
    made.model = SimpleNamespace(embed_multimodal=lambda text: [states_of(prompt) for prompt in text])
    return made


@pytest.mark.parametrize("lengths", [(5, 2), (40, 3), (3, 1, 4, 1, 5)])
def test_the_model_state_takes_one_graph_or_several_or_none(state, manager, lengths):
    """One that holds all; one beside a prompt that none holds; and more prompts than a graph takes."""
    for captured in ("a pool", None):
        manager.graph_pool = captured
        asked = prompts(*lengths)
        for prompt, got in zip(asked, state._encode(asked), strict=True):
            assert torch.equal(got, states_of(prompt))
