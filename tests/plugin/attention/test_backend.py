"""The metadata of the merged attention: self and cross caches, and graphs."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vllm.v1.attention.backend import AttentionCGSupport, AttentionType, CommonAttentionMetadata
from vllm.v1.kv_cache_interface import CrossAttentionSpec, FullAttentionSpec

from plugin.attention.backend import MergedBackend, MergedMetadataBuilder

SHAPE = {"block_size": 16, "num_kv_heads": 1, "head_size": 32, "dtype": torch.float32}


def builder(spec_class: type, num_drafts: int | None = None) -> MergedMetadataBuilder:
    speculative = (
        None
        if num_drafts is None
        else SimpleNamespace(num_speculative_tokens=num_drafts, parallel_drafting=True)
    )
    config = SimpleNamespace(
        speculative_config=speculative,
        use_v2_model_runner=True,
        model_config=SimpleNamespace(max_model_len=30, hf_config=SimpleNamespace(max_source_positions=40)),
    )
    return MergedBackend.get_builder_cls()(spec_class(**SHAPE), ["layer"], config, torch.device("cpu"))


def step(query_lens: list[int], computed: list[int], encoder_lens: list[int]) -> CommonAttentionMetadata:
    """A step in which request r has computed `computed[r]` tokens before; block tables of distinct pages."""
    n = len(query_lens)
    start = torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32)
    seq_lens = torch.tensor(computed, dtype=torch.int32) + torch.tensor(query_lens, dtype=torch.int32)
    return CommonAttentionMetadata(
        query_start_loc=start,
        query_start_loc_cpu=start.clone(),
        seq_lens=seq_lens,
        seq_lens_cpu_upper_bound=seq_lens.clone(),
        num_reqs=n,
        num_actual_tokens=int(start[-1]),
        max_query_len=max(query_lens),
        max_seq_len=int(seq_lens.max()),
        block_table_tensor=torch.randperm(n * 4).to(torch.int32).view(n, 4),
        slot_mapping=torch.arange(int(start[-1])),
        encoder_seq_lens=torch.tensor(encoder_lens, dtype=torch.int32),
        encoder_seq_lens_cpu=np.array(encoder_lens, dtype=np.int32),
    )


def test_the_self_cache_reads_the_steps_own_tensors():
    common = step([1, 1], [5, 0], [3, 40])
    built = builder(FullAttentionSpec).build(0, common)
    assert built.seq_lens is common.seq_lens
    assert built.query_start_loc is common.query_start_loc
    assert (built.num_actual_tokens, built.max_query_len, built.max_seq_len) == (2, 1, 6)
    assert torch.equal(built.block_table, common.block_table_tensor[:, :2]), "as wide as 30 tokens need"


def test_the_cross_cache_reads_encoder_lengths():
    common = step([1, 8, 1], [0, 9, 0], [3, 40, 33])
    built = builder(CrossAttentionSpec, 7).build(0, common)
    assert built.seq_lens is common.encoder_seq_lens
    assert torch.equal(built.block_table, common.block_table_tensor[:, :3]), (
        "as wide as 40 encoder tokens need"
    )
    assert built.block_table.data_ptr() == common.block_table_tensor.data_ptr()
    assert built.max_seq_len == 40


@pytest.mark.parametrize(("num_drafts", "longest", "bound"), [(None, 1, 1), (7, 1, 8), (7, 20, 20)])
def test_with_drafts_the_launch_is_always_a_verifications(num_drafts, longest, bound):
    built = builder(FullAttentionSpec, num_drafts).build(0, step([longest, 1], [5, 9], [3, 4]))
    assert built.max_query_len == bound


def test_graphs_of_any_mix_of_lengths_and_both_kinds_of_cache():
    made = builder(FullAttentionSpec)
    assert made.get_cudagraph_support(made.vllm_config, made.kv_cache_spec) == AttentionCGSupport.ALWAYS
    for kind in (AttentionType.DECODER, AttentionType.ENCODER_DECODER):
        reasons = MergedBackend.validate_configuration(
            256, torch.float32, "auto", 16, False, False, False, False, False, SimpleNamespace(), kind
        )
        assert reasons == []
