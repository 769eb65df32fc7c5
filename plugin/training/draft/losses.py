"""What a draft is trained to lessen: distances between its distribution and the verifier's, weighted by slot.

Every distance compares logits over the draft vocabulary with the verifier's logits restricted to it, slot by slot. A
batch's loss is the weighted sum over counted slots divided by their number (plus 1e-5, so that a batch without counted
slots gives 0 rather than a NaN). A batch taken in parts gives each part the number of the whole, so that the parts'
losses add up to the whole's.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from plugin.drafts.families import Family
from plugin.training.settings import LossSettings


def slot_weights(block_size: int, gamma: float, device: torch.device | None = None) -> torch.Tensor:
    """[block_size]: 0 for the anchor's slot, exp(-(k - 1) / gamma) for slot k."""
    slots = torch.arange(block_size, device=device, dtype=torch.float32)
    return torch.where(slots > 0, torch.exp(-(slots - 1) / gamma), 0.0)


def kl_divergence(logits: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """KL(teacher || draft) in nats, [...] from two [..., draft vocabulary]."""
    return functional.kl_div(
        functional.log_softmax(logits, dim=-1),
        functional.log_softmax(teacher, dim=-1),
        reduction="none",
        log_target=True,
    ).sum(dim=-1)


def cross_entropy(logits: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """-log of the draft's probability of the verifier's likeliest token, [...]."""
    best = teacher.argmax(dim=-1, keepdim=True)
    return -functional.log_softmax(logits, dim=-1).gather(-1, best).squeeze(-1)


def total_variation(logits: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Half the L1 distance of the two distributions, [...]; 1 minus it is the chance of acceptance."""
    return 0.5 * (logits.softmax(dim=-1) - teacher.softmax(dim=-1)).abs().sum(dim=-1)


def masked_mean(
    values: torch.Tensor, mask: torch.Tensor, weights: torch.Tensor, count: int | None = None
) -> torch.Tensor:
    """Sum of `values` * `weights` where `mask`, over `count` + 1e-5; shapes [..., B], [..., B], [B].

    `count` is the number of counted slots to divide by, those of `mask` by default.
    """
    counted = mask.to(values.dtype)
    return (values * weights * counted).sum() / ((counted.sum() if count is None else count) + 1e-5)


def draft_loss(
    family: Family,
    logits: torch.Tensor,
    confidence: torch.Tensor | None,
    teacher: torch.Tensor,
    mask: torch.Tensor,
    settings: LossSettings,
    count: int | None = None,
) -> dict[str, torch.Tensor]:
    """The loss under "loss" and its terms by name, scalars.

    `logits` and `teacher` [R, N, B, draft vocabulary], `confidence` [R, N, B] or None, `mask` [R, N, B]; `count` as in
    `masked_mean`.
    """
    weights = slot_weights(mask.shape[-1], settings.gamma, mask.device)
    if family != "dspark":
        return {"loss": masked_mean(kl_divergence(logits, teacher), mask, weights, count)}
    distance = total_variation(logits, teacher)
    terms = {
        "ce_loss": masked_mean(cross_entropy(logits, teacher), mask, weights, count),
        "tv_loss": masked_mean(distance, mask, weights, count),
    }
    loss = settings.cross_entropy * terms["ce_loss"] + settings.total_variation * terms["tv_loss"]
    if confidence is not None:
        error = functional.binary_cross_entropy_with_logits(
            confidence, 1.0 - distance.detach(), reduction="none"
        )
        terms["confidence_loss"] = masked_mean(error, mask, weights, count)
        loss = loss + settings.confidence * terms["confidence_loss"]
    return {"loss": loss, **terms}
