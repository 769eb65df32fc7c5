"""How well a draft guesses: accuracy by slot while it trains, acceptance as serving would count it.

Words: *accepted tokens* of a block are its leading matches, those before its first miss; *acceptance rate* is accepted
over draft tokens; *mean acceptance length* counts the bonus token that the verifier adds, hence 1 + accepted / drafts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch


def leading_matches(correct: torch.Tensor) -> torch.Tensor:
    """Length of the run of true values at the front of the last dimension: [..., K] bool to [...] int64."""
    return correct.long().cumprod(dim=-1).sum(dim=-1)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Acceptance of a number of draft steps with K = `draft_length` tokens each."""

    drafts: int
    draft_tokens: int
    accepted_tokens: int
    acceptance_rate: float | None
    mean_accepted_tokens: float | None
    mean_acceptance_length: float | None
    per_position: tuple[float, ...] | None

    @classmethod
    def from_runs(cls, runs: torch.Tensor, draft_length: int) -> Acceptance:
        """From the leading matches [drafts] of every counted draft; rates are None without any."""
        drafts, accepted = runs.numel(), int(runs.sum())
        if not drafts:
            return cls(0, 0, 0, None, None, None, None)
        reached = [float((runs >= position).double().mean()) for position in range(1, draft_length + 1)]
        return cls(
            drafts=drafts,
            draft_tokens=drafts * draft_length,
            accepted_tokens=accepted,
            acceptance_rate=accepted / (drafts * draft_length),
            mean_accepted_tokens=accepted / drafts,
            mean_acceptance_length=1 + accepted / drafts,
            per_position=tuple(reached),
        )


@dataclass(slots=True)
class Tally:
    """Running sums over an epoch; `metrics()` gives the means under the names of val_metrics.json."""

    block_size: int
    correct: torch.Tensor = field(init=False)
    counted: torch.Tensor = field(init=False)
    sums: dict[str, float] = field(default_factory=dict)
    batches: int = 0

    def __post_init__(self) -> None:
        self.correct = torch.zeros(self.block_size, dtype=torch.long)
        self.counted = torch.zeros(self.block_size, dtype=torch.long)

    def add(self, terms: Mapping[str, float], correct: torch.Tensor, mask: torch.Tensor) -> None:
        """One batch: its loss terms, and [R, N, B] bool tensors of right slots and counted slots."""
        for name, value in terms.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.batches += 1
        self.correct += (correct & mask).sum(dim=(0, 1)).cpu()
        self.counted += mask.sum(dim=(0, 1)).cpu()

    def metrics(self) -> dict[str, float]:
        """Means so far; slots that never counted are left out, so no value is a NaN."""
        means = {f"{name}_epoch": total / self.batches for name, total in self.sums.items()}
        counted = int(self.counted.sum())
        if counted:
            means["full_acc_epoch"] = int(self.correct.sum()) / counted
        for slot in range(1, self.block_size):
            if int(self.counted[slot]):
                means[f"position_{slot}_acc_epoch"] = int(self.correct[slot]) / int(self.counted[slot])
        return means
