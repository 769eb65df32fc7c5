"""The verifier's taps on fakes of vLLM's speculators: the graph finds them, whatever way the draft runs."""

from types import SimpleNamespace

import pytest
import torch
from vllm.v1.worker.gpu.spec_decode.dflash.speculator import DFlashSpeculator
from vllm.v1.worker.gpu.spec_decode.dspark.speculator import DSparkSpeculator

from plugin.drafts.v2_speculator import BlockSpeculator, MarkovSpeculator

TAPS, HIDDEN, ROOM = 3, 4, 10


class Draft:
    """A draft of which only the projection of the taps is there; without one their concatenation is the context."""

    def __init__(self, projects):
        self.model = SimpleNamespace()
        if projects:
            weight = torch.randn(HIDDEN, TAPS * HIDDEN)
            self.model.fc = SimpleNamespace(input_size=TAPS * HIDDEN)
            self.combine_hidden_states = lambda taps: taps @ weight.T
            self.project_taps = lambda taps, out: out.copy_(taps @ weight.T)
        else:
            self.combine_hidden_states = lambda taps: taps


@pytest.fixture(params=[(BlockSpeculator, True), (BlockSpeculator, False), (MarkovSpeculator, True)])
def speculator(request, monkeypatch):
    """One whose vLLM part stores context rows 0 to 6 in a graph and the rest before it, as vLLM's `propose` does."""
    owner, projects = request.param
    stored = torch.zeros(ROOM, HIDDEN if projects else TAPS * HIDDEN)

    def precompute(self, start, end, dummy_run=False):
        stored[start:end] = self.hidden_states[start:end]

    def propose(
        self, input_batch, attn_metadata, slot_mappings, last_hidden_states, aux_hidden_states, *rest
    ):
        num_tokens = input_batch.num_tokens
        self.hidden_states[:num_tokens].copy_(last_hidden_states[:num_tokens])
        assert aux_hidden_states is None
        if num_tokens > 6:
            self._precompute_context_kv(6, num_tokens)
        self._precompute_context_kv(0, 6)
        return rest

    monkeypatch.setattr(DFlashSpeculator, "_precompute_context_kv", precompute)
    monkeypatch.setattr(DFlashSpeculator, "propose", propose)
    made = owner.__new__(owner)
    made.max_num_tokens, made.hidden_states, made.stored = ROOM, stored.clone(), stored
    made.draft_logits, made.req_states = "sampled drafts", SimpleNamespace(draft_tokens=SimpleNamespace())
    loader = DSparkSpeculator if owner is MarkovSpeculator else DFlashSpeculator
    monkeypatch.setattr(loader, "load_draft_model", lambda *_: Draft(projects))
    made.model = made.load_draft_model(None, set())
    return made


def propose(speculator, num_tokens, taps, **more):
    return speculator.propose(
        SimpleNamespace(num_tokens=num_tokens),
        {},
        {},
        torch.randn(num_tokens, HIDDEN),
        taps,
        *"abcdef",
        **more,
    )


@pytest.mark.parametrize("num_tokens", [2, 6, 9])
@pytest.mark.parametrize("side_by_side", [False, True])
def test_the_context_is_the_taps_of_the_steps_tokens_projected(speculator, num_tokens, side_by_side):
    taps = [torch.randn(num_tokens + 1, HIDDEN) for _ in range(TAPS)]  # a graph's padding behind
    given = [torch.cat(taps, dim=-1)] if side_by_side else taps
    rest = propose(speculator, num_tokens, given, num_speculative_tokens=5)
    want = speculator.model.combine_hidden_states(torch.cat(taps, dim=-1)[:num_tokens])
    assert torch.equal(speculator.stored[:num_tokens], want)
    assert rest == (*"abcdef", None, False, False, None, False, 5)


def test_taps_that_a_graph_has_left_in_place_are_not_copied(speculator, monkeypatch):
    """As vLLM's manager returns them, whose buffer the speculator's is."""
    speculator.taps.copy_(torch.randn(ROOM, TAPS * HIDDEN))
    want = speculator.model.combine_hidden_states(speculator.taps[:5].clone())
    monkeypatch.setattr(torch, "cat", None)
    propose(speculator, 5, [speculator.taps[:8]])
    assert torch.equal(speculator.stored[:5], want)


def test_the_buffers_stay_where_graphs_read_them(speculator):
    taps, hidden = speculator.taps.data_ptr(), speculator.hidden_states.data_ptr()
    propose(speculator, 2, [torch.randn(2, HIDDEN)] * TAPS)
    assert (speculator.taps.data_ptr(), speculator.hidden_states.data_ptr()) == (taps, hidden)
