"""Greedy DSpark blocks: the GPU's programs, and which slots of which blocks the speculator gives them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from plugin.drafts.dspark import T5Gemma2DSparkDraftModel
from plugin.drafts.kernels.triton_pick import BLOCK_V, MAX_PROGRAMS, MAX_ROWS, serves
from plugin.drafts.markov import MarkovHead
from plugin.drafts.v2_speculator import MarkovSpeculator
from tests.plugin.attention.interpreted import interpreted_errors
from tests.plugin.drafts.markov_cases import CASES, is_right

K, REQUESTS, HIDDEN, VOCABULARY = 3, 2, 8, 20


@pytest.fixture(scope="module")
def interpreted() -> dict[str, bool]:
    found: dict[str, bool] = interpreted_errors("tests.plugin.drafts.markov_cases")
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_programs_pick_slot_by_slot(interpreted: dict[str, bool], name: str) -> None:
    assert interpreted[name]


def test_control_a_forgotten_bias_is_seen(interpreted: dict[str, bool]) -> None:
    assert not interpreted["control"]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_gpu_the_programs_pick_slot_by_slot(name: str, dtype: torch.dtype) -> None:
    assert is_right(name, "cuda", dtype)


@pytest.mark.gpu
def test_gpu_a_captured_block_follows_its_inputs() -> None:
    from plugin.drafts.kernels.triton_pick import pick_block
    from tests.plugin.drafts.markov_cases import reference

    torch.manual_seed(0)
    base, w1 = torch.randn(1, 7, 32_000, device="cuda"), torch.randn(1000, 256, device="cuda")
    base, w1 = base.bfloat16(), w1.bfloat16()
    w2 = (0.1 * torch.randn(32_000, 256, device="cuda")).bfloat16()
    anchors, out = (
        torch.zeros(1, dtype=torch.int32, device="cuda"),
        torch.zeros(1, 7, dtype=torch.long, device="cuda"),
    )
    d2t = -torch.arange(32_000, device="cuda") + torch.arange(32_000, device="cuda") % 1000
    pick_block(base, anchors, w1, w2, d2t, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pick_block(base, anchors, w1, w2, d2t, out)
    agreed = 0
    for anchor in range(20):
        anchors.fill_(anchor)
        base.copy_(torch.randn(1, 7, 32_000, device="cuda"))
        graph.replay()
        agreed += int(torch.equal(out, reference(base, anchors, w1, w2, d2t)))
    assert agreed >= 18, "but where two logits are equal but for the order of a sum"


@pytest.mark.parametrize(
    ("rows", "size", "rank", "dtype", "served"),
    [
        (1, 32_000, 256, torch.bfloat16, True),
        (MAX_ROWS, MAX_PROGRAMS * BLOCK_V, 16, torch.float16, True),
        (MAX_ROWS + 1, 32_000, 256, torch.bfloat16, False),
        (1, MAX_PROGRAMS * BLOCK_V + 1, 256, torch.bfloat16, False),
        (1, 32_000, 48, torch.bfloat16, False),
        (1, 32_000, 512, torch.bfloat16, False),
        (1, 32_000, 256, torch.float32, False),
    ],
)
def test_what_the_programs_serve(rows: int, size: int, rank: int, dtype: torch.dtype, served: bool) -> None:
    assert serves(torch.empty(rows, 7, 64, dtype=dtype), torch.empty(size, rank, dtype=dtype)) == served


@pytest.mark.parametrize(("from_anchor", "length"), [(False, 1 + K), (True, K)])
@pytest.mark.parametrize("by_programs", [True, False])
def test_the_last_slots_of_each_block_predict(from_anchor: bool, length: int, by_programs: bool) -> None:
    torch.manual_seed(0)
    states, given = torch.randn(REQUESTS * length + 2, HIDDEN), []  # two tokens of padding
    ids = torch.arange(40, dtype=torch.int32)
    head = MarkovHead("vanilla", VOCABULARY, VOCABULARY, 4, HIDDEN)
    lm_head = torch.randn(VOCABULARY, HIDDEN)
    model: Any = SimpleNamespace(
        model=SimpleNamespace(markov_head=head),
        compute_draft_logits=lambda x: x @ lm_head.T,
        pick=lambda logits, bias: (logits + bias).argmax(-1),
    )
    model.sample_block = lambda *args: T5Gemma2DSparkDraftModel.sample_block(model, *args)

    def pick_block(hidden: torch.Tensor, anchors: torch.Tensor, out: torch.Tensor) -> bool:
        given.append((hidden, anchors))
        if by_programs:
            out.fill_(5)
        return by_programs

    model.pick_block = pick_block
    speculator: Any = MarkovSpeculator.__new__(MarkovSpeculator)
    first = length - K
    speculator.__dict__.update(
        model=model, num_speculative_steps=K, num_query_per_req=length, sample_from_anchor=from_anchor,
        input_buffers=SimpleNamespace(input_ids=ids), draft_tokens=torch.zeros(4, K, dtype=torch.long),
        draft_logits=None, acceptance_estimator=None, use_confidence_head=False,
        sample_idx_mapping=torch.zeros(99), sample_pos=torch.zeros(99),
    )  # fmt: skip
    speculator._sample_sequential(REQUESTS, states)
    ((hidden, anchors),) = given
    for r in range(REQUESTS):
        assert torch.equal(hidden[r], states[r * length + first : (r + 1) * length])
    assert anchors.tolist() == [0, length]
    want = torch.full((REQUESTS, K), 5)
    if not by_programs:
        for r in range(REQUESTS):
            previous = torch.tensor(r * length)
            for k in range(K):
                logits = states[r * length + first + k] @ lm_head.T + head.markov_w2(head.embed(previous))
                previous = want[r, k] = logits.argmax()
    assert torch.equal(speculator.draft_tokens[:REQUESTS], want)
    assert not speculator.draft_tokens[REQUESTS:].any()


def test_on_the_cpu_and_with_other_heads_a_block_is_sampled_by_pytorch() -> None:
    out = torch.zeros(1, K, dtype=torch.long)
    for kind in ("vanilla", "gated"):
        draft: Any = SimpleNamespace(
            model=SimpleNamespace(markov_head=MarkovHead(kind, VOCABULARY, VOCABULARY, 16, HIDDEN))
        )
        hidden = torch.zeros(1, K, HIDDEN)
        assert not T5Gemma2DSparkDraftModel.pick_block(draft, hidden, torch.zeros(1), out)
