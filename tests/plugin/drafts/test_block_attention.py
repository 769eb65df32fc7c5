"""The draft's attention: each block sees its whole context and itself, in both directions."""

from types import SimpleNamespace

import pytest
import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec

from plugin.attention.paged_batch import BatchSpec, make_batch
from plugin.attention.torch_paged import gather_pages
from plugin.drafts import block_attention
from plugin.drafts.block_attention import BlockBackend, BlockImpl, attend_in_blocks

HEADS, KV_HEADS, DIM, K = 4, 2, 32, 3
SPEC = FullAttentionSpec(block_size=16, num_kv_heads=KV_HEADS, head_size=DIM, dtype=torch.float32)


def config() -> SimpleNamespace:
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=K, parallel_drafting=True),
        scheduler_config=SimpleNamespace(max_num_seqs=8),
        model_config=SimpleNamespace(max_model_len=64),
        use_v2_model_runner=True,
    )


def test_a_block_sees_its_context_and_itself_in_both_directions():
    seq_lens, block = (20, 5, 33), K + 1
    batch = make_batch(
        BatchSpec(
            (block,) * 3, (0,) * 3, seq_lens, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, dtype=torch.float32
        ),
        "cpu",
    )  # fmt: skip
    pages = batch.cross_pages
    common = SimpleNamespace(
        num_actual_tokens=3 * block, max_query_len=block, query_start_loc=batch.query_start, seq_lens=pages.seq_lens,
        max_seq_len=pages.max_len, block_table_tensor=pages.block_table, slot_mapping=None, num_reqs=3,
    )  # fmt: skip
    builder = BlockBackend.get_builder_cls()(SPEC, ["layer"], config(), torch.device("cpu"))
    output = torch.full_like(batch.q, 7.0)
    impl = BlockImpl(HEADS, DIM, 0.3, KV_HEADS)
    impl.forward(None, batch.q, None, None, pages.cache, builder.build(0, common), output)
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, dim=1) for x in gather_pages(pages).chunk(2, dim=-1))
    for r, length in enumerate(seq_lens):
        q = batch.q[r * block : (r + 1) * block].transpose(0, 1)
        weights = (q @ k[r, :, :length].transpose(1, 2) * 0.3).softmax(-1)
        want = (weights @ v[r, :, :length]).transpose(0, 1)
        torch.testing.assert_close(output[r * block : (r + 1) * block], want, atol=1e-5, rtol=1e-5)


def test_the_launch_is_chosen_for_the_models_length_not_for_the_tables_width(monkeypatch):
    given = []
    monkeypatch.setattr(block_attention, "merged_attention", lambda *args: given.append(args))
    common = SimpleNamespace(
        num_actual_tokens=4, max_query_len=4, query_start_loc=torch.tensor([0, 4]), seq_lens=torch.tensor([5]),
        max_seq_len=5, block_table_tensor=torch.zeros(1, 500), slot_mapping=None, num_reqs=1,
    )  # fmt: skip
    built = BlockBackend.get_builder_cls()(SPEC, ["layer"], config(), torch.device("cpu")).build(0, common)
    q = torch.zeros(4, HEADS, DIM)
    BlockImpl(HEADS, DIM, 0.3, KV_HEADS).forward(None, q, None, None, q, built, torch.empty_like(q))
    (_, _, _, mine, theirs, *_), *_ = given
    assert (mine.block_table.shape, theirs.block_table.shape) == ((1, 1), (1, 4))


def test_a_captured_step_needs_no_metadata_of_its_own():
    builder = BlockBackend.get_builder_cls()(SPEC, ["layer"], config(), torch.device("cpu"))
    assert builder.supports_draft_decode_metadata_update
    seq_lens = torch.tensor([5, 6], dtype=torch.int32)
    common = SimpleNamespace(
        num_actual_tokens=8, max_query_len=4, query_start_loc=torch.tensor([0, 4, 8]), seq_lens=seq_lens,
        max_seq_len=6, block_table_tensor=torch.zeros(2, 4), slot_mapping=torch.zeros(8), num_reqs=2,
    )  # fmt: skip
    built = builder.build_for_cudagraph_capture(common)
    assert built.seq_lens is seq_lens
    assert built.no_keys.tolist() == [0, 0]


def test_only_as_many_keys_are_stored_as_there_are_slots():
    cache = torch.zeros(2, KV_HEADS, 16, 2 * DIM)
    k = torch.ones(4, KV_HEADS, DIM)
    BlockImpl(HEADS, DIM, 0.3, KV_HEADS).do_kv_cache_update(None, k, 2 * k, cache, torch.tensor([17, -1, 3]))
    assert cache.abs().sum(dim=(1, 3)).nonzero().tolist() == [[0, 3], [1, 1]]


@pytest.mark.parametrize(
    ("changed", "ours"),
    [({}, True), ({"causal": True}, False), ({"sliding_window": 64}, False), ({"head_dim": 48}, False)],
)
def test_layers_that_mask_otherwise_keep_the_backend_of_vllms_choice(changed, ours):
    layer = SimpleNamespace(
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_size=changed.get("head_dim", DIM),
        attn_backend=None,
        impl=None,
    )
    served = attend_in_blocks(
        SimpleNamespace(
            attn=layer,
            causal=changed.get("causal", False),
            sliding_window=changed.get("sliding_window"),
            attention_sink_bias=None,
            v_scale=None,
            rotary_emb=SimpleNamespace(is_neox_style=True),
            scaling=0.3,
        )
    )
    assert served == ours
    assert (layer.attn_backend is BlockBackend) == ours
