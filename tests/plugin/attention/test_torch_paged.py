"""The paged attention against the naive reference, over shuffled pages with garbage in every unused slot."""

import pytest
import torch

from plugin.attention import torch_paged
from plugin.attention.naive import merged_attention_naive
from plugin.attention.torch_paged import Pages, gather_pages, merged_attention, write_pages

HEADS, KV_HEADS, DIM, BLOCK = 4, 2, 8, 4


def paged(sequences: list[torch.Tensor], values: list[torch.Tensor], seed: int) -> Pages:
    """Lay the keys and values `[length, kv_heads, dim]` of several requests into shuffled pages full of NaN."""
    generator = torch.Generator().manual_seed(seed)
    blocks = [-(-len(s) // BLOCK) for s in sequences]
    order = torch.randperm(sum(blocks) + 3, generator=generator).tolist()
    cache = torch.full((len(order), KV_HEADS, BLOCK, 2 * DIM), float("nan"))
    table = torch.zeros(len(sequences), max(blocks) + 1, dtype=torch.int32)
    for r, (k, v) in enumerate(zip(sequences, values, strict=True)):
        mine = [order.pop() for _ in range(blocks[r])]
        table[r, : len(mine)] = torch.tensor(mine)
        slots = torch.tensor([mine[i // BLOCK] * BLOCK + i % BLOCK for i in range(len(k))])
        write_pages(cache, slots, k, v)
    lens = torch.tensor([len(s) for s in sequences], dtype=torch.int32)
    return Pages(cache, table, lens, int(lens.max()))


def case(query_lens: list[int], seq_lens: list[int], encoder_lens: list[int], seed: int = 0):
    torch.manual_seed(seed)
    q = torch.randn(sum(query_lens), HEADS, DIM)
    kv = [
        [torch.randn(n, KV_HEADS, DIM) for n in lens]
        for lens in (seq_lens, seq_lens, encoder_lens, encoder_lens)
    ]
    start = torch.tensor([0, *torch.tensor(query_lens).cumsum(0)], dtype=torch.int32)
    return q, kv, start


@pytest.mark.parametrize("window", [None, 1, 3, 8])
@pytest.mark.parametrize(
    ("query_lens", "seq_lens", "encoder_lens"),
    [
        ([1], [1], [1]),  # prefill of the start token
        ([1, 1, 1], [1, 5, 17], [3, 9, 1]),  # prefill beside decodes
        ([4, 4], [4, 13], [6, 8]),  # verification, K = 3
        ([1, 8, 1, 8], [1, 20, 33, 8], [30, 2, 4, 12]),  # a request joins a verifying batch
    ],
)
def test_equals_the_naive_reference(query_lens, seq_lens, encoder_lens, window):
    q, (sk, sv, ck, cv), start = case(query_lens, seq_lens, encoder_lens)
    got = merged_attention(q, start, max(query_lens), paged(sk, sv, 1), paged(ck, cv, 2), window, 0.3)
    want = merged_attention_naive(q, sk, sv, ck, cv, query_lens, window, 0.3)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize(
    ("query_lens", "seq_lens", "encoder_lens", "short"),
    [
        ([1, 1, 1], [5, 1, 6], [3, 40, 4], [0, 2]),  # a long prompt joins
        ([4, 1, 8], [4, 60, 13], [6, 8, 9], [0, 2]),  # a long answer between short ones, all queries unlike
        ([2, 2], [9, 9], [20, 20], None),
        ([2, 2], [9, 9], [40, 20], None),  # more than half as long: beside each other
    ],
)
def test_a_long_request_does_not_pad_the_short_ones(
    query_lens, seq_lens, encoder_lens, short, window, monkeypatch
):
    monkeypatch.setattr(torch_paged, "APART_KEYS", 20)
    padded, sizes = torch_paged._padded, []

    def seen(q, start, longest, self_pages, cross_pages, *others):
        sizes.append((len(q), longest, self_pages.max_len, cross_pages.max_len))
        return padded(q, start, longest, self_pages, cross_pages, *others)

    monkeypatch.setattr(torch_paged, "_padded", seen)
    q, (sk, sv, ck, cv), start = case(query_lens, seq_lens, encoder_lens)
    got = merged_attention(q, start, max(query_lens), paged(sk, sv, 1), paged(ck, cv, 2), window, 0.3)
    want = merged_attention_naive(q, sk, sv, ck, cv, query_lens, window, 0.3)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    every = [*range(len(query_lens))]
    groups = [every] if short is None else [short, [i for i in every if i not in short]]
    assert sizes == [
        (
            sum(query_lens[i] for i in group),
            max(query_lens[i] for i in group),
            max(seq_lens[i] for i in group),
            max(encoder_lens[i] for i in group),
        )
        for group in groups
    ]


@pytest.mark.parametrize("broken", ["window off by one", "last encoder key dropped", "not causal"])
def test_controls_the_reference_tells_a_wrong_mask_apart(broken):
    q, (sk, sv, ck, cv), start = case([4, 4], [12, 13], [6, 8])
    want = merged_attention_naive(q, sk, sv, ck, cv, [4, 4], 3, 0.3)
    self_pages, cross_pages, window = paged(sk, sv, 1), paged(ck, cv, 2), 3
    if broken == "window off by one":
        window = 4
    elif broken == "last encoder key dropped":
        cross_pages = Pages(
            cross_pages.cache, cross_pages.block_table, cross_pages.seq_lens - 1, cross_pages.max_len
        )
    else:
        start = torch.tensor([0, 3, 8], dtype=torch.int32)  # the queries' positions shift
    got = merged_attention(q, start, 5, self_pages, cross_pages, window, 0.3)
    assert (got - want).abs().max() > 1e-2


def test_padding_slots_are_dropped():
    cache = torch.zeros(2, KV_HEADS, BLOCK, 2 * DIM)
    k = torch.ones(3, KV_HEADS, DIM)
    write_pages(cache, torch.tensor([5, -1, 6]), k, 2 * k)
    written = cache.abs().sum(dim=(1, 3)).nonzero().tolist()
    assert written == [[1, 1], [1, 2]]
    assert cache[1, 0, 1].tolist() == [1.0] * DIM + [2.0] * DIM


def test_gather_reads_what_was_written():
    _, (sk, sv, _, _), _ = case([1, 1], [5, 9], [1, 1])
    k, v = gather_pages(paged(sk, sv, 3)).chunk(2, dim=-1)
    assert torch.equal(k[1].transpose(0, 1), sk[1])
    assert torch.equal(v[0].transpose(0, 1)[:5], sv[0])
