"""Losses by hand."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch

from plugin.drafts.families import LossName
from plugin.training.draft.losses import (
    cross_entropy,
    draft_loss,
    kl_divergence,
    lk_hybrid,
    negative_log_acceptance,
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
    sums = dict.fromkeys(("kl", "ce", "tv", "nla", "lk_hybrid", "confidence"), 0.0)
    for slot in (1, 2, 3):
        weight = math.exp(-(slot - 1) / GAMMA)
        draft, teacher = _softmax(LOGITS[slot]), _softmax(TEACHER[slot])
        pairs = list(zip(draft, teacher, strict=True))
        distance = 1 - sum(min(q, p) for q, p in pairs)
        chance = 1 / (1 + math.exp(-CONFIDENCE[slot]))
        kl = sum(p * math.log(p / q) for q, p in pairs)
        share = math.exp(-3 * (1 - distance))
        sums["kl"] += weight * kl
        sums["nla"] += weight * -math.log(1 - distance)
        sums["lk_hybrid"] += weight * (share * kl + (1 - share) * distance)
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


@pytest.mark.parametrize("name", get_args(LossName))
@pytest.mark.parametrize("family", ["dflash", "dspark"])
def test_every_distance_of_a_three_token_block(family: str, name: LossName) -> None:
    """One alone has no term beside the loss, as `speculators` counts it; weighted, all terms have."""
    logits, _, teacher, mask = _tensors()
    hand = _by_hand()
    alone = draft_loss(family, logits, None, teacher, mask, LossSettings(GAMMA, ((name, 2.0),)))  # type: ignore[arg-type]
    assert alone.keys() == {"loss"} and float(alone["loss"]) == pytest.approx(2 * hand[name], abs=1e-6)
    both = draft_loss(family, logits, None, teacher, mask, LossSettings(GAMMA, ((name, 0.5), ("tv", 3.0))))  # type: ignore[arg-type]
    if name != "tv":
        assert float(both["loss"]) == pytest.approx(0.5 * hand[name] + 3 * hand["tv"], abs=1e-6)
        assert float(both[f"{name}_loss"]) == pytest.approx(hand[name], abs=1e-6)


def test_no_gradient_flows_through_the_share_of_lk_hybrid() -> None:
    """It is that of the two terms with the share as it stands."""
    logits, _, teacher, _ = _tensors()
    found, wanted = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    lk_hybrid(found, teacher).sum().backward()
    share = torch.exp(-3 * (1 - total_variation(logits, teacher)))
    (share * kl_divergence(wanted, teacher) + (1 - share) * total_variation(wanted, teacher)).sum().backward()
    assert found.grad is not None and wanted.grad is not None
    assert torch.allclose(found.grad, wanted.grad)


def test_a_draft_that_is_far_off_still_learns_its_acceptance() -> None:
    """Where no token is ever accepted the loss is -log 1e-5, not infinite."""
    logits = torch.tensor([[60.0, -60.0]], requires_grad=True)
    value = negative_log_acceptance(logits, -logits.detach())
    value.sum().backward()
    assert float(value.detach()) == pytest.approx(-math.log(1e-5), rel=1e-4)
    assert logits.grad is not None and bool(logits.grad.isfinite().all())


def test_confidence_does_not_pull_on_the_draft() -> None:
    logits, confidence, teacher, mask = _tensors()
    logits.requires_grad_()
    settings = LossSettings(gamma=GAMMA, terms=(("ce", 0.0), ("tv", 0.0)))
    draft_loss("dspark", logits, confidence, teacher, mask, settings)["loss"].backward()
    assert logits.grad is not None and not logits.grad.any()


def test_slot_weights() -> None:
    assert slot_weights(4, 2.0).tolist() == pytest.approx([0.0, 1.0, math.exp(-0.5), math.exp(-1.0)])
    assert slot_weights(3, 2.0, first=0).tolist() == pytest.approx([1.0, math.exp(-0.5), math.exp(-1.0)])


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
