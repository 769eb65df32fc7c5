"""The encoder's attention against transformers' own mask function and a plain softmax, prompt by prompt."""

import pytest
import torch
from transformers.models.t5gemma2.modeling_t5gemma2 import sliding_window_mask_function

from plugin.attention import bidirectional
from plugin.attention.bidirectional import bidirectional_attention, rows_attention, window_mask


@pytest.mark.parametrize("window", [1, 2, 7, 8, 9])
def test_window_mask_is_transformers_mask_element_by_element(window):
    rule = sliding_window_mask_function(window, is_causal=False)
    mask = window_mask(range(20), range(20), window, torch.device("cpu"))
    for i in range(20):
        for j in range(20):
            assert mask[i, j].item() == bool(rule(0, 0, torch.tensor(i), torch.tensor(j))), (i, j)


@pytest.mark.parametrize("window", [None, 4, 8])
@pytest.mark.parametrize("chunk", [1, 3, 4, 1024])
def test_each_prompt_attends_to_itself_only(window, chunk, monkeypatch):
    """Lengths below, at and above the window, and the chunks of queries (C01)."""
    monkeypatch.setattr(bidirectional, "QUERY_CHUNK", chunk)
    torch.manual_seed(0)
    lengths = [1, 3, 4, 5, 8, 9, 17]
    q, k, v = (torch.randn(sum(lengths), heads, 8) for heads in (4, 2, 2))
    starts = torch.tensor([0, *lengths]).cumsum(0)
    got = bidirectional_attention(q, k, v, starts, max(lengths), window, 0.4).split(lengths)
    for out, qs, ks, vs in zip(got, q.split(lengths), k.split(lengths), v.split(lengths), strict=True):
        scores = torch.einsum("qhd,khd->hqk", qs, ks.repeat_interleave(2, dim=1)) * 0.4
        if window is not None:
            scores = scores.masked_fill(
                ~window_mask(range(len(qs)), range(len(qs)), window, qs.device), float("-inf")
            )
        want = torch.einsum("hqk,khd->qhd", scores.softmax(-1), vs.repeat_interleave(2, dim=1))
        torch.testing.assert_close(out, want, atol=1e-5, rtol=1e-5)


def test_control_a_window_off_by_one_is_seen():
    """Negative control: one more key on a side of the window changes the output (C01)."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(20, heads, 8) for heads in (4, 2, 2))
    starts = torch.tensor([0, 20])
    right = bidirectional_attention(q, k, v, starts, 20, 8, 0.4)
    for wrong in (7, 9, 16):
        assert (bidirectional_attention(q, k, v, starts, 20, wrong, 0.4) - right).abs().max() > 1e-2


@pytest.mark.parametrize("window", [None, 4, 5, 64])
@pytest.mark.parametrize("rows", [slice(0, 20), slice(0, 7), slice(7, 20), slice(7, 9), slice(19, 20)])
def test_rows_of_a_prompt_are_rows_of_its_attention(rows, window):
    torch.manual_seed(0)
    q, k, v = (torch.randn(20, heads, 8) for heads in (4, 2, 2))
    starts = torch.tensor([0, 20], dtype=torch.int32)
    whole = bidirectional_attention(q, k, v, starts, 20, window, 0.4)
    some = rows_attention(q, k, v, rows, window, 0.4, starts)
    torch.testing.assert_close(some, whole[rows], atol=1e-6, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [slice(0, 300), slice(0, 70), slice(70, 300), slice(299, 300)])
def test_gpu_rows_of_a_prompt_are_rows_of_its_attention(rows, dtype):
    """Heads of 256, views of one tensor with queries, keys and values side by side, as the encoder has them."""
    torch.manual_seed(0)
    qkv = torch.randn(300, 6, 256, dtype=dtype, device="cuda")
    q, k, v = qkv.split([4, 1, 1], dim=1)
    starts = torch.tensor([0, 300], dtype=torch.int32, device="cuda")
    whole = bidirectional_attention(q, k, v, starts, 300, None, 0.06)
    some = rows_attention(q, k, v, rows, None, 0.06, starts)
    torch.testing.assert_close(some, whole[rows], atol=1e-5 if dtype == torch.float32 else 2e-2, rtol=1e-2)
