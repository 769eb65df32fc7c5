"""The walk counts at a server's anchors what the server would have accepted there, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from transformers import T5Gemma2ForConditionalGeneration

from benchmarks.comparison import Request
from benchmarks.serving_walk import walk, walk_checkpoints
from plugin.drafts.checkpoint import DEMO
from plugin.drafts.families import FAMILIES
from plugin.training.draft.anchors import Blocks
from plugin.training.draft.model import TrainableDraft
from plugin.training.verifier.extraction import Extractor

K = 5


@torch.no_grad()
def _block(draft: TrainableDraft, extractor: Extractor, prompt: list[int], sequence: list[int]) -> list[int]:
    """What a server drafts after `sequence`: from the states before its last token, slot after slot."""
    anchor, block = len(sequence) - 1, draft.config.block_size
    states = extractor(torch.tensor([prompt]), torch.ones(1, len(prompt)), torch.tensor([sequence[:-1]]))
    ids = torch.tensor([[[sequence[-1], *[draft.config.mask_token_id] * (block - 1)]]])
    blocks = Blocks(
        columns=torch.zeros(1, 1, dtype=torch.long),
        positions=torch.arange(anchor, anchor + block).view(1, 1, -1),
        documents=torch.zeros(1, 1, dtype=torch.long),
        inputs=ids,
        targets=ids.clone(),
        loss_mask=torch.zeros_like(ids, dtype=torch.bool),
    )
    hidden = draft(states.aux, torch.zeros(1, anchor), torch.arange(anchor)[None], blocks)
    for slot in range(1, block):
        logits, _ = draft.draft_logits(hidden, blocks)
        blocks.targets[0, 0, slot] = draft.to_target(logits[0, 0, slot].argmax())
    drafted: list[int] = blocks.targets[0, 0, 1 : 1 + K].tolist()
    return drafted


def _serve(draft: TrainableDraft, extractor: Extractor, rng: random.Random, steps: int) -> Request:
    """A request whose steps accept as many draft tokens as `rng` says: the next token is then another one."""
    prompt = [2, *(rng.randrange(8, 60) for _ in range(rng.randrange(1, 6)))]
    sequence, accepted = [2, rng.randrange(8, 60)], []
    for _ in range(steps):
        drafted = _block(draft, extractor, prompt, sequence)
        count = rng.randrange(K + 1)
        bonus = rng.randrange(8, 60)
        while count < K and bonus == drafted[count]:
            bonus = rng.randrange(8, 60)
        sequence += [*drafted[:count], bonus]
        accepted.append(count)
    return Request(prompt, sequence[1:], accepted)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_walk_finds_what_was_accepted(
    make_draft: Callable[..., TrainableDraft], verifier: T5Gemma2ForConditionalGeneration, family: str
) -> None:
    """Against serving written out, of nine requests with up to 20 steps: more than are computed at once."""
    draft = make_draft(family).eval()
    extractor = Extractor(verifier, draft.config.aux_hidden_state_layer_ids)
    rng = random.Random(3)
    served = [_serve(draft, extractor, rng, steps) for steps in (20, 1, 0, 3, 2, 17, 1, 4, 2)]
    found = walk(draft, extractor, served, K, pad_id=0, start_id=2)
    runs = [count for request in served for count in request.accepted]
    assert found.anchors == len(runs) == 50
    assert found.matched == [sum(run > slot for run in runs) for slot in range(K)]
    room = [len(request.response) - anchor for request in served for anchor in request.anchors()]
    assert found.counted == [sum(left > slot for left in room) for slot in range(K)]
    assert all(m <= c <= n for m, c, n in zip(found.matched, found.correct, found.counted, strict=True))
    assert found.correct[0] == found.matched[0] and found.correct[1] >= found.matched[1] > 0


def test_what_lies_after_the_end_counts_nowhere(
    make_draft: Callable[..., TrainableDraft], verifier: T5Gemma2ForConditionalGeneration
) -> None:
    draft = make_draft("dflash").eval()
    extractor = Extractor(verifier, draft.config.aux_hidden_state_layer_ids)
    whole = _serve(draft, extractor, random.Random(0), 1)
    assert whole.accepted[0] >= 2, "the test wants a long run"
    cut = Request(whole.prompt, whole.response[:2], whole.accepted)
    found = walk(draft, extractor, [cut], K, 0, 2)
    assert (found.anchors, found.counted, found.matched) == (1, [1, 0, 0, 0, 0], [1, 0, 0, 0, 0])


def test_tokens_are_compared_with_the_verifiers_own(
    make_draft: Callable[..., TrainableDraft], verifier: T5Gemma2ForConditionalGeneration
) -> None:
    draft = make_draft("dflash")
    extractor = Extractor(verifier, draft.config.aux_hidden_state_layer_ids)
    response: list[int] = []
    for _ in range(6):
        logits = verifier(
            input_ids=torch.tensor([[2, 9]]), decoder_input_ids=torch.tensor([[2, *response]])
        ).logits
        response.append(int(logits[0, -1].argmax()))
    other = [*response[:5], (response[5] + 1) % 64]
    requests = [Request([2, 9], response, [0] * 5), Request([2, 9], other, [0] * 5)]
    found = walk(draft, extractor, requests, K, 0, 2)
    assert (found.tokens, found.greedy) == (12, 11)


def test_folders_are_walked() -> None:
    request = Request([2, 300, 301], [20, 21, 22, 1], [1, 0])
    found = walk_checkpoints(DEMO / "dflash", DEMO / "verifier", [request], 3)
    assert (found.anchors, found.tokens, found.counted) == (2, 4, [2, 1, 1])
