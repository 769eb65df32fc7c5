"""Losses by hand."""

from __future__ import annotations

import math

import pytest
import torch

from plugin.training.draft.losses import (
    cross_entropy,
    draft_loss,
    kl_divergence,
    slot_weights,
    total_variation,
)
from plugin.training.settings import LossSettings


def _softmax(logits: list[float]) -> list[float]:
    powers = [math.exp(value) for value in logits]
    return [power / sum(powers) for power in powers]


# A block of three tokens after the anchor over a draft vocabulary of three; slot 0 holds values that must not matter.
LOGITS = [[9.0, -9.0, 3.0], [0.5, -1.0, 2.0], [0.0, 0.3, -0.7], [1.5, 1.0, -2.0]]
TEACHER = [[-5.0, 5.0, 1.0], [1.0, 0.0, 2.5], [-0.2, 0.9, 0.1], [0.4, 2.0, -1.0]]
CONFIDENCE = [7.0, 0.4, -0.3, 1.2]
GAMMA = 4.0


def _by_hand() -> dict[str, float]:
    sums = dict.fromkeys(("kl", "ce", "tv", "confidence"), 0.0)
    for slot in (1, 2, 3):
        weight = math.exp(-(slot - 1) / GAMMA)
        draft, teacher = _softmax(LOGITS[slot]), _softmax(TEACHER[slot])
        pairs = list(zip(draft, teacher, strict=True))
        distance = 0.5 * sum(abs(q - p) for q, p in pairs)
        chance = 1 / (1 + math.exp(-CONFIDENCE[slot]))
        sums["kl"] += weight * sum(p * math.log(p / q) for q, p in pairs)
        sums["ce"] += weight * -math.log(draft[teacher.index(max(teacher))])
        sums["tv"] += weight * distance
        sums["confidence"] += weight * -((1 - distance) * math.log(chance) + distance * math.log(1 - chance))
    return {name: total / (3 + 1e-5) for name, total in sums.items()}


def _tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    shape = (1, 1, 4, 3)
    mask = torch.tensor([[[False, True, True, True]]])
    return (
        torch.tensor(LOGITS).view(shape),
        torch.tensor(CONFIDENCE).view(1, 1, 4),
        torch.tensor(TEACHER).view(shape),
        mask,
    )


@pytest.mark.parametrize("family", ["dflash", "dflare"])
def test_kl_loss_of_a_three_token_block(family: str) -> None:
    logits, _, teacher, mask = _tensors()
    terms = draft_loss(family, logits, None, teacher, mask, LossSettings(gamma=GAMMA))  # type: ignore[arg-type]
    assert float(terms["loss"]) == pytest.approx(_by_hand()["kl"], abs=1e-6)


def test_dspark_loss_of_a_three_token_block() -> None:
    logits, confidence, teacher, mask = _tensors()
    terms = draft_loss("dspark", logits, confidence, teacher, mask, LossSettings(gamma=GAMMA))
    hand = _by_hand()
    assert float(terms["ce_loss"]) == pytest.approx(hand["ce"], abs=1e-6)
    assert float(terms["tv_loss"]) == pytest.approx(hand["tv"], abs=1e-6)
    assert float(terms["confidence_loss"]) == pytest.approx(hand["confidence"], abs=1e-6)
    whole = 0.1 * hand["ce"] + 0.9 * hand["tv"] + hand["confidence"]
    assert float(terms["loss"]) == pytest.approx(whole, abs=1e-6)
    without = draft_loss("dspark", logits, None, teacher, mask, LossSettings(gamma=GAMMA))
    assert float(without["loss"]) == pytest.approx(0.1 * hand["ce"] + 0.9 * hand["tv"], abs=1e-6)


def test_confidence_does_not_pull_on_the_draft() -> None:
    logits, confidence, teacher, mask = _tensors()
    logits.requires_grad_()
    settings = LossSettings(gamma=GAMMA, terms=(("ce", 0.0), ("tv", 0.0)))
    draft_loss("dspark", logits, confidence, teacher, mask, settings)["loss"].backward()
    assert logits.grad is not None and not logits.grad.any()


def test_slot_weights() -> None:
    assert slot_weights(4, 2.0).tolist() == pytest.approx([0.0, 1.0, math.exp(-0.5), math.exp(-1.0)])


def test_a_batch_without_counted_slots_gives_zero_and_no_gradient() -> None:
    logits, _, teacher, mask = _tensors()
    logits.requires_grad_()
    loss = draft_loss("dflash", logits, None, teacher, mask & False, LossSettings())["loss"]
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert logits.grad is not None and not logits.grad.any()


def test_equal_distributions_are_at_no_distance() -> None:
    logits = torch.randn(5, 7)
    assert kl_divergence(logits, logits + 3.0).abs().max() < 1e-6
    assert total_variation(logits, logits + 3.0).abs().max() < 1e-6
    one_hot = torch.full((1, 7), -40.0).index_fill(1, torch.tensor([2]), 40.0)
    assert float(cross_entropy(one_hot, one_hot)) == pytest.approx(0.0, abs=1e-6)
