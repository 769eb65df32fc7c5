"""Training a draft: it learns, it repeats itself exactly, and its acceptance is what serving would count."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import T5Gemma2ForConditionalGeneration

from plugin.training.anchors import Blocks
from plugin.training.draft_model import DraftModel
from plugin.training.draft_trainer import DraftSettings, DraftTrainer
from plugin.training.extraction import Extractor
from plugin.training.samples import Sample
from plugin.training.tiny_verifier import greedy_responses

FAMILIES = ("dflash", "dspark", "dflare")


@pytest.fixture(scope="module")
def answered(verifier: T5Gemma2ForConditionalGeneration) -> list[Sample]:
    generator = torch.Generator().manual_seed(4)
    prompts = [[2, *torch.randint(8, 60, (5,), generator=generator).tolist()] for _ in range(12)]
    responses = greedy_responses(verifier, prompts, max_new_tokens=20, batch_size=12)
    return [Sample(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]


def _trainer(draft: DraftModel, verifier: T5Gemma2ForConditionalGeneration, **fields: object) -> DraftTrainer:
    settings = DraftSettings(**{"epochs": 2, "batch_size": 4, "max_anchors": 3, "peak_rate": 3e-3, **fields})  # type: ignore[arg-type]
    extractor = Extractor(verifier, draft.config.aux_hidden_state_layer_ids)
    return DraftTrainer(draft, extractor, settings, pad_id=0, start_id=2)


@pytest.mark.parametrize("family", FAMILIES)
def test_training_lowers_the_loss_and_repeats_exactly(
    make_draft: Callable[..., DraftModel],
    verifier: T5Gemma2ForConditionalGeneration,
    answered: list[Sample],
    family: str,
) -> None:
    found = []
    for _ in range(2):
        draft = make_draft(family)
        trainer = _trainer(draft, verifier, epochs=3)
        before = trainer.evaluate(answered)
        state, metrics = trainer.train(answered, answered[:4])
        assert (state.epoch, state.local_step, state.global_step) == (2, 3, 9)
        after = trainer.evaluate(answered)
        assert after["loss_epoch"] < before["loss_epoch"]
        assert {"full_acc_epoch", *(f"position_{k}_acc_epoch" for k in range(1, 8))} <= set(metrics)
        found.append((metrics, [tensor.clone() for tensor in draft.state_dict().values()]))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(one, other) for one, other in zip(found[0][1], found[1][1], strict=True))


def test_without_validation_there_are_no_metrics_f16(
    make_draft: Callable[..., DraftModel], verifier: T5Gemma2ForConditionalGeneration, answered: list[Sample]
) -> None:
    _, metrics = _trainer(make_draft("dflash"), verifier, epochs=1).train(answered[:2], [])
    assert metrics == {}


def test_a_loss_that_is_not_finite_stops_the_run(
    make_draft: Callable[..., DraftModel], verifier: T5Gemma2ForConditionalGeneration, answered: list[Sample]
) -> None:
    draft = make_draft("dflash")
    draft.fc.weight.data[0, 0] = float("nan")
    with pytest.raises(RuntimeError, match="non-finite"):
        _trainer(draft, verifier).train(answered, [])


@pytest.mark.parametrize("family", FAMILIES)
def test_acceptance_is_that_of_a_served_request(
    make_draft: Callable[..., DraftModel],
    verifier: T5Gemma2ForConditionalGeneration,
    answered: list[Sample],
    family: str,
) -> None:
    """Against serving written out: one request, one block after another, tokens drafted left to right."""
    draft = make_draft(family)
    trainer = _trainer(draft, verifier, epochs=6, peak_rate=1e-2)
    trainer.train(answered, [])
    draft.eval()
    total = 0
    for length in (1, 3, 7):
        runs = []
        for sample in answered[:4]:
            sequence = [2, *sample.response]
            states = trainer.extractor(
                torch.tensor([sample.prompt]), torch.ones(1, len(sample.prompt)), torch.tensor([sequence])
            )
            anchor = 1
            while anchor < len(sequence) - 1:
                drafted = _serve_block(draft, states.aux[:, :anchor], sequence[anchor], anchor, length)
                accepted = 0
                while accepted < length and sequence[anchor + 1 + accepted :][:1] == [drafted[accepted]]:
                    accepted += 1
                runs.append(accepted)
                anchor += 1 + accepted
        found = trainer.acceptance(answered[:4], length)
        assert found.drafts == len(runs)
        assert found.accepted_tokens == sum(runs)
        total += sum(runs)
    assert total > 0, "nothing was accepted, so nothing was compared"


@torch.no_grad()
def _serve_block(draft: DraftModel, aux: torch.Tensor, token: int, anchor: int, length: int) -> list[int]:
    """What a server knows at an anchor: earlier states, the anchor token, and nothing of what follows."""
    ids = torch.tensor([[[token, *[draft.config.mask_token_id] * length]]])
    blocks = Blocks(
        columns=torch.zeros(1, 1, dtype=torch.long),
        positions=torch.arange(anchor, anchor + length + 1).view(1, 1, -1),
        documents=torch.zeros(1, 1, dtype=torch.long),
        inputs=ids,
        targets=ids.clone(),
        loss_mask=torch.zeros_like(ids, dtype=torch.bool),
    )
    states = draft(aux, torch.zeros(1, anchor), torch.arange(anchor)[None], blocks)
    drafted: list[int] = []
    for slot in range(1, length + 1):
        logits, _ = draft.draft_logits(states, blocks)
        drafted.append(int(draft.to_target(logits[0, 0, slot].argmax())))
        blocks.targets[0, 0, slot] = drafted[-1]
    return drafted


def test_an_extractor_of_other_layers_is_refused(
    make_draft: Callable[..., DraftModel], verifier: T5Gemma2ForConditionalGeneration
) -> None:
    with pytest.raises(ValueError, match=r"the draft reads \[0, 2, 5\], the extractor taps \[1\]"):
        DraftTrainer(make_draft("dflash"), Extractor(verifier, (1,)), DraftSettings(), 0, 2)
