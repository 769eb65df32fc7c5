"""What a draft is trained to lessen: distances between its distribution and the verifier's, weighted by slot.

Every distance compares logits over the draft vocabulary with the verifier's logits restricted to it, slot by slot. A
batch's loss is the weighted sum over counted slots divided by their number (plus 1e-5, so that a batch without counted
slots gives 0 rather than a NaN). A batch taken in parts gives each part the number of the whole, so that the parts'
losses add up to the whole's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch.nn import functional

from plugin.drafts.families import Family, LossName
from plugin.training.settings import LossSettings


def slot_weights(
    block_size: int, gamma: float, device: torch.device | None = None, first: int = 1
) -> torch.Tensor:
    """[block_size]: exp(-(k - first) / gamma) for slot k from `first` on, 0 for the anchor's where that is 1."""
    slots = torch.arange(block_size, device=device, dtype=torch.float32) - first
    return torch.where(slots >= 0, torch.exp(-slots / gamma), 0.0)


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


def negative_log_acceptance(logits: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """-log of the chance of acceptance, [...], which is taken to be 1e-5 at least.

    Its gradient is that of the total variation over that chance, so that a draft that is far off learns, too.
    """
    return -(1.0 - total_variation(logits, teacher)).clamp_min(1e-5).log()


def lk_hybrid(logits: torch.Tensor, teacher: torch.Tensor, eta: float = 3.0) -> torch.Tensor:
    """KL divergence where a draft is far off, total variation where it is near, [...] (arXiv 2602.23881).

    The share of the first is exp(-`eta` * chance of acceptance), through which no gradient flows.
    """
    distance = total_variation(logits, teacher)
    share = torch.exp(-eta * (1.0 - distance.detach()))
    return share * kl_divergence(logits, teacher) + (1.0 - share) * distance


DISTANCES: Final[dict[LossName, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "kl": kl_divergence,
    "ce": cross_entropy,
    "tv": total_variation,
    "nla": negative_log_acceptance,
    "lk_hybrid": lk_hybrid,
}


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
    first: int = 1,
) -> dict[str, torch.Tensor]:
    """The loss under "loss" and, of several, its terms by name, scalars.

    `logits` and `teacher` [R, N, B, draft vocabulary], `confidence` [R, N, B] or None, `mask` [R, N, B]; `count` as in
    `masked_mean`, `first` is the first slot that predicts.
    """
    weights = slot_weights(mask.shape[-1], settings.gamma, mask.device, first)
    wanted = settings.of(family)
    found = {name: DISTANCES[name](logits, teacher) for name in wanted}
    terms = {f"{name}_loss": masked_mean(value, mask, weights, count) for name, value in found.items()}
    loss = torch.stack([weight * terms[f"{name}_loss"] for name, weight in wanted.items()]).sum()
    if confidence is not None:
        distance = found["tv"] if "tv" in found else total_variation(logits, teacher)
        error = functional.binary_cross_entropy_with_logits(
            confidence, 1.0 - distance.detach(), reduction="none"
        )
        terms["confidence_loss"] = masked_mean(error, mask, weights, count)
        loss = loss + settings.confidence * terms["confidence_loss"]
    return {"loss": loss, **(terms if len(terms) > 1 else {})}
