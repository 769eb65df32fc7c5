"""Training a draft: it learns, it repeats itself exactly, and its acceptance is what serving would count."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from transformers import T5Gemma2ForConditionalGeneration

from plugin.drafts.families import FAMILIES
from plugin.training.data.samples import Sample
from plugin.training.draft.anchors import Blocks
from plugin.training.draft.model import TrainableDraft
from plugin.training.run.evaluation import evaluate, serving_acceptance
from plugin.training.run.schedule import learning_rate
from plugin.training.run.trainer import DraftTrainer, NotFinite, StepReport, check_finite
from plugin.training.settings import DraftSettings
from plugin.training.verifier.extraction import Extractor, VerifierStates
from plugin.training.verifier.greedy import greedy_responses


@pytest.fixture(scope="module")
def answered(verifier: T5Gemma2ForConditionalGeneration) -> list[Sample]:
    generator = torch.Generator().manual_seed(4)
    prompts = [[2, *torch.randint(8, 60, (5,), generator=generator).tolist()] for _ in range(12)]
    responses = greedy_responses(verifier, prompts, max_new_tokens=20, batch_size=12)
    return [
        Sample(prompt, response, f"s{number}")
        for number, (prompt, response) in enumerate(zip(prompts, responses, strict=True))
    ]


def _trainer(
    draft: TrainableDraft,
    verifier: T5Gemma2ForConditionalGeneration,
    samples: Sequence[Sample],
    **fields: object,
) -> DraftTrainer:
    wanted = {"epochs": 2, "rows": 2, "total_length": 48, "response_length": 24, "max_anchors": 6, "seed": 1}
    settings = DraftSettings(**{**wanted, "peak_rate": 3e-3, "precision": "float32", **fields})  # type: ignore[arg-type]
    extractor = Extractor(verifier, draft.config.aux_hidden_state_layer_ids)
    return DraftTrainer(draft, extractor, settings, samples)


def _train(trainer: DraftTrainer) -> list[StepReport]:
    reports = []
    while not trainer.done:
        reports += list(trainer.steps())
        trainer.next_epoch()
    return reports


@pytest.mark.parametrize("family", FAMILIES)
def test_training_lowers_the_loss_and_repeats_exactly(
    make_draft: Callable[..., TrainableDraft],
    verifier: T5Gemma2ForConditionalGeneration,
    answered: list[Sample],
    family: str,
) -> None:
    """Two runs with one seed have equal losses, metrics and weights; another seed has not."""
    found = []
    for seed in (1, 1, 2):
        draft = make_draft(family)
        trainer = _trainer(draft, verifier, answered, epochs=3, seed=seed)
        before = evaluate(trainer, answered)
        losses = check_finite(_train(trainer))
        assert len(losses) == trainer.total_steps == trainer.state.global_step == 3 * trainer.epoch_steps[0]
        metrics = evaluate(trainer, answered)
        assert metrics["loss_epoch"] < before["loss_epoch"]
        assert {"full_acc_epoch", "eal_epoch", *(f"position_{k}_acc_epoch" for k in range(1, 8))} <= set(
            metrics
        )
        found.append((losses, metrics, [tensor.clone() for tensor in draft.state_dict().values()]))
    assert found[0][:2] == found[1][:2]
    assert all(torch.equal(one, other) for one, other in zip(found[0][2], found[1][2], strict=True))
    assert found[0][0] != found[2][0]


@pytest.mark.parametrize("family", ["dflash", "dspark"])
def test_accumulated_micro_batches_equal_the_big_batch(
    make_draft: Callable[..., TrainableDraft],
    verifier: T5Gemma2ForConditionalGeneration,
    answered: list[Sample],
    family: str,
) -> None:
    """Rows of unequal numbers of slots, one at a time and all at once: loss, gradient norm and weights to 1e-6."""
    found = []
    for rows, accumulate in ((4, 1), (1, 4), (3, 2)):
        draft = make_draft(family)
        trainer = _trainer(draft, verifier, answered, rows=rows, accumulate=accumulate)
        report = trainer.take([answered[:3], answered[3:4], answered[4:6], [Sample([2, 9], [11, 1])]])
        found.append((report, torch.cat([tensor.flatten() for tensor in trainer.trained.values()])))
    assert found[0][0].loss > 0
    for report, weights in found[1:]:
        assert abs(float(report.loss - found[0][0].loss)) < 1e-6
        assert abs(float(report.gradient_norm - found[0][0].gradient_norm)) < 1e-6
        # AdamW's first step is the sign of the gradient wherever that is not tiny.
        assert (weights - found[0][1]).abs().mean() < 1e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_arithmetic_over_float32_weights(
    make_draft: Callable[..., TrainableDraft],
    verifier: T5Gemma2ForConditionalGeneration,
    answered: list[Sample],
    family: str,
) -> None:
    """The loss is near that of float32 and other than it; weights, AdamW's moments and the loss are float32."""
    found = []
    for precision in ("float32", "bfloat16"):
        trainer = _trainer(make_draft(family), verifier, answered, precision=precision)
        report = next(trainer.steps())
        assert report.loss.dtype == torch.float32
        assert all(tensor.dtype == torch.float32 for tensor in trainer.trained.values())
        assert all(state["exp_avg"].dtype == torch.float32 for state in trainer.optimizer.state.values())
        found.append(float(report.loss))
    assert 0 < abs(found[0] - found[1]) < 0.05 * found[0]


def test_rates_are_torchs_own_schedule(
    make_draft: Callable[..., TrainableDraft],
    verifier: T5Gemma2ForConditionalGeneration,
    answered: list[Sample],
) -> None:
    trainer = _trainer(make_draft("dflash"), verifier, answered, epochs=2, warmup=0.5)
    total = trainer.total_steps
    rates = [report.rate for report in _train(trainer)]
    assert rates == pytest.approx([learning_rate(step, total, 3e-3, 0.5, "linear") for step in range(total)])
    assert trainer.scheduler.state_dict()["last_epoch"] == total


def test_a_batch_without_slots_changes_nothing_f10(
    make_draft: Callable[..., TrainableDraft],
    verifier: T5Gemma2ForConditionalGeneration,
    answered: list[Sample],
) -> None:
    """All labels masked, since no response has two tokens: loss 0, no update, and training goes on (F10)."""
    draft = make_draft("dflash")
    trainer = _trainer(draft, verifier, [Sample([2, 8], [1])])
    before = {name: tensor.clone() for name, tensor in draft.state_dict().items()}
    (report,) = list(trainer.steps())
    assert check_finite([report]) == [0.0]
    assert all(torch.equal(tensor, before[name]) for name, tensor in draft.state_dict().items())
    assert trainer.state.global_step == 1 and not trainer.optimizer.state
    assert check_finite([trainer.take([answered[:2]])])[0] > 0


def test_a_huge_rate_stays_finite_or_stops_f10(
    make_draft: Callable[..., TrainableDraft],
    verifier: T5Gemma2ForConditionalGeneration,
    answered: list[Sample],
) -> None:
    """At a learning rate of 1e6 the weights overflow; the step that sees it is named (F10)."""
    trainer = _trainer(make_draft("dflash"), verifier, answered, epochs=12, peak_rate=1e6)
    with pytest.raises(NotFinite, match=r"^step \d+: .*not finite; samples s\d+, ") as error:
        check_finite(_train(trainer))
    assert "\n" not in str(error.value)


def test_states_that_are_not_finite_name_their_sample_f10(
    make_draft: Callable[..., TrainableDraft],
    verifier: T5Gemma2ForConditionalGeneration,
    answered: list[Sample],
) -> None:
    """One sample with inf hidden states is named, in training and in validation (F10)."""
    trainer = _trainer(make_draft("dflash"), verifier, answered)
    extractor = trainer.block_step.extractor

    class Poisoned:
        layer_ids, pad_id, start_id = extractor.layer_ids, extractor.pad_id, extractor.start_id
        logits, greedy_tokens = extractor.logits, extractor.greedy_tokens

        def __call__(self, prompts: torch.Tensor, mask: torch.Tensor, tokens: torch.Tensor) -> VerifierStates:
            found = extractor(prompts, mask, tokens)
            bad = (prompts[:, : len(answered[5].prompt)] == torch.tensor(answered[5].prompt)).all(dim=1)
            found.aux[bad, 1, 0, 3] = float("inf")
            return found

    trainer.block_step.extractor = Poisoned()  # type: ignore[assignment]
    with pytest.raises(NotFinite, match=r"^step \d+: the verifier's states are not finite on s5$"):
        check_finite(list(trainer.steps()))
    with pytest.raises(NotFinite, match=r"^validation: the verifier's states are not finite on s5$"):
        evaluate(trainer, answered)


@pytest.mark.parametrize(
    ("family", "from_anchor"), [*((family, False) for family in FAMILIES), ("dspark", True)]
)
@pytest.mark.parametrize("short", [False, True])
def test_acceptance_is_that_of_a_served_request(
    make_draft: Callable[..., TrainableDraft],
    verifier: T5Gemma2ForConditionalGeneration,
    answered: list[Sample],
    family: str,
    from_anchor: bool,
    short: bool,
) -> None:
    """Against serving written out: one request, one block after another, tokens drafted left to right."""
    draft = make_draft(family, sample_from_anchor=from_anchor)
    trainer = _trainer(draft, verifier, answered, epochs=6, peak_rate=1e-2)
    _train(trainer)
    draft.eval()
    total = 0
    for length in (1, 3, 7):
        runs = []
        for sample in answered[:4]:
            sequence = [2, *sample.response]
            states = trainer.block_step.extractor(
                torch.tensor([sample.prompt]), torch.ones(1, len(sample.prompt)), torch.tensor([sequence])
            )
            anchor = 1
            while anchor < len(sequence) - 1:
                block = length + draft.config.first_slot if short else draft.config.block_size
                drafted = _serve_block(draft, states.aux[:, :anchor], sequence[anchor], anchor, block)[
                    :length
                ]
                accepted = 0
                while accepted < length and sequence[anchor + 1 + accepted :][:1] == [drafted[accepted]]:
                    accepted += 1
                runs.append(accepted)
                anchor += 1 + accepted
        found = serving_acceptance(
            draft, trainer.block_step.extractor, answered[:4], length, short_blocks=short
        )
        assert found.drafts == len(runs)
        assert found.accepted_tokens == sum(runs)
        total += sum(runs)
    assert total > 0, "nothing was accepted, so nothing was compared"


@torch.no_grad()
def _serve_block(draft: TrainableDraft, aux: torch.Tensor, token: int, anchor: int, size: int) -> list[int]:
    """What a server knows at an anchor: earlier states, the anchor token, and nothing of what follows."""
    first = draft.config.first_slot
    ids = torch.tensor([[[token, *[draft.config.mask_token_id] * (size - 1)]]])
    blocks = Blocks(
        columns=torch.zeros(1, 1, dtype=torch.long),
        positions=torch.arange(anchor, anchor + size).view(1, 1, -1),
        documents=torch.zeros(1, 1, dtype=torch.long),
        inputs=ids,
        targets=ids.clone(),
        loss_mask=torch.zeros_like(ids, dtype=torch.bool),
    )
    states = draft(aux, torch.zeros(1, anchor), torch.arange(anchor)[None], blocks)
    drafted: list[int] = []
    for slot in range(first, size):
        logits, _ = draft.draft_logits(states, blocks)
        drafted.append(int(draft.to_target(logits[0, 0, slot].argmax())))
        blocks.targets[0, 0, slot] = drafted[-1]
    return drafted


def test_an_extractor_of_other_layers_is_refused(
    make_draft: Callable[..., TrainableDraft], verifier: T5Gemma2ForConditionalGeneration
) -> None:
    with pytest.raises(ValueError, match=r"the draft reads \[0, 2, 5\], the extractor taps \[1\]"):
        DraftTrainer(make_draft("dflash"), Extractor(verifier, (1,)), DraftSettings(), [Sample([2], [5, 1])])


def test_no_samples_are_refused_f16(
    make_draft: Callable[..., TrainableDraft], verifier: T5Gemma2ForConditionalGeneration
) -> None:
    """A split that leaves nothing to train on is named (F16)."""
    with pytest.raises(ValueError, match="samples: none given"):
        _trainer(make_draft("dflash"), verifier, [])
