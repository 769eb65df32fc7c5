"""Drafts that vLLM's own `propose` makes, as it does the sampled ones, on fakes of what it touches: a step without a
draft writes its context and drafts nothing.
"""

import inspect
from types import SimpleNamespace

import pytest
import torch
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu.spec_decode.dflash import speculator as dflash
from vllm.v1.worker.gpu.spec_decode.dflash.speculator import DFlashSpeculator

from plugin.drafts.v2_speculator import BlockSpeculator, MarkovSpeculator

BLOCK, NUM_TOKENS, HIDDEN = 7, 5, 4


@pytest.fixture(params=[BlockSpeculator, MarkovSpeculator])
def speculator(request, monkeypatch):
    """One of sampled drafts that records which of its parts vLLM's own `propose` calls, and in which order."""
    made = request.param.__new__(request.param)
    made.req_states = SimpleNamespace(draft_tokens=SimpleNamespace())
    made.calls = []

    def note(name, result=None):
        return lambda *args, **kwargs: made.calls.append(name) or result

    def dispatch(manager, num_reqs, num_tokens, *, need_eager, **kwargs):
        mode = CUDAGraphMode.NONE if need_eager else CUDAGraphMode.FULL
        return SimpleNamespace(cg_mode=mode, num_tokens=num_tokens, num_reqs=num_reqs), None

    monkeypatch.setattr(dflash, "prepare_dflash_inputs", note("inputs"))
    monkeypatch.setattr(dflash, "dispatch_cg_and_sync_dp", dispatch)
    monkeypatch.setattr(dflash, "build_slot_mappings_by_layer", note("slots"))
    tables = SimpleNamespace(
        slot_mappings=torch.zeros(1, 64), input_block_tables=[None], block_sizes=[16], cp_rank=0, cp_interleave=1
    )  # fmt: skip
    made.__dict__.update(
        model=SimpleNamespace(combine_hidden_states=lambda states: states),
        hidden_states=(states := torch.zeros(16, HIDDEN)),
        taps=states,  # as DFlare has them: projected in the context
        draft_tokens=torch.full((4, BLOCK), 9),
        query_cudagraph_manager=SimpleNamespace(run_fullgraph=note("graph")),
        block_tables=tables,
        input_buffers=None,
        context_positions=None,
        temperature=None,
        seeds=None,
        sample_indices=torch.zeros(28, dtype=torch.long),
        sample_pos=torch.zeros(28),
        sample_idx_mapping=torch.zeros(28),
        sample_col=torch.zeros(28),
        draft_logits=object(),
        kv_cache_config=None,
        pcp_manager=None,
        _context_slot_mappings=torch.zeros(1, 64),
        draft_kv_cache_group_id=0, draft_kv_cache_group_ids=[0], num_query_per_req=1 + BLOCK,
        num_speculative_steps=BLOCK, max_num_reqs=4, max_num_tokens=16, max_model_len=64, sample_from_anchor=False,
        parallel_drafting_token_id=3, dcp_size=1, dp_size=1, dp_rank=0, supports_decode_metadata_update=True,
        _group_causal=False,
        _build_uniform_attn_metadata=note("metadata"),
        _precompute_context_kv=lambda start, end, dummy=False: made.calls.append(("context", start, end)),
        _prepare_eplb_forward=note("eplb"),
        _run_model=note("pass", torch.zeros(64, HIDDEN)),
        _sample_sequential=note("sample"),
        sample_draft=note("sample", torch.zeros(2 * BLOCK)),
        _num_graph_context_tokens=lambda num_reqs: 8 * num_reqs,
    )  # fmt: skip
    return made


def propose(speculator, k, **more):
    batch = SimpleNamespace(
        num_reqs=2, num_tokens=NUM_TOKENS, seq_lens_cpu_upper_bound=torch.tensor([3, 4]), idx_mapping=None
    )
    states = torch.ones(NUM_TOKENS, HIDDEN)
    speculator.calls.clear()
    return speculator.propose(
        batch, {}, {}, states, [states], None, None, None, None, None, None, num_speculative_tokens=k, **more
    )


def test_without_a_draft_the_context_is_written_and_no_pass_is_run(speculator):
    drafted = propose(speculator, 0)
    assert ("context", 0, NUM_TOKENS) in speculator.calls
    assert not {"graph", "pass", "sample"} & set(speculator.calls)
    assert speculator.hidden_states[:NUM_TOKENS].eq(1).all()
    assert drafted.shape == (2, BLOCK)  # the runner takes the first K of them


@pytest.mark.parametrize("k", [1, 3, BLOCK, None])
def test_with_one_the_whole_block_is_drafted_whatever_k_is(speculator, k):
    propose(speculator, 0)
    propose(speculator, k)
    assert "graph" in speculator.calls and ("context", 0, NUM_TOKENS) not in speculator.calls
    propose(speculator, k, is_profile=True)
    assert "pass" in speculator.calls and "sample" in speculator.calls


def test_vllms_proposal_has_what_the_override_relies_on():
    parameters = inspect.signature(DFlashSpeculator.propose).parameters
    assert {"num_speculative_tokens", "is_profile"} <= parameters.keys()
    assert "_generate_draft" in vars(DFlashSpeculator)
