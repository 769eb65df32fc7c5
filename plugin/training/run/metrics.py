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
    accepted_tokens: int
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    per_position: tuple[float, ...] | None

    @classmethod
    def from_runs(cls, runs: torch.Tensor, draft_length: int) -> Acceptance:
        """From the leading matches [drafts] of every counted draft; rates are None without any."""
        drafts, accepted = runs.numel(), int(runs.sum())
        if not drafts:
            return cls(0, 0, None, None, None)
        reached = [float((runs >= position).double().mean()) for position in range(1, draft_length + 1)]
        return cls(
            drafts=drafts,
            accepted_tokens=accepted,
            acceptance_rate=accepted / (drafts * draft_length),
            mean_acceptance_length=1 + accepted / drafts,
            per_position=tuple(reached),
        )


@dataclass(slots=True)
class Tally:
    """Running sums over an epoch; `metrics()` gives the means under the names of val_metrics.json.

    Slots from `first_slot` on predict. Sums stay on the device of what is added until `metrics()` asks for them.
    """

    block_size: int
    first_slot: int = 1
    _sums: dict[str, torch.Tensor] = field(default_factory=dict)

    def add(self, terms: Mapping[str, torch.Tensor], correct: torch.Tensor, mask: torch.Tensor) -> None:
        """One batch: its loss terms (scalars), and [R, N, B] bool tensors of right slots and counted slots."""
        slots = mask.sum()
        self._add("slots", slots)
        for name, value in terms.items():
            self._add(f"loss/{name}", value.double() * slots)
        right = correct & mask
        self._add("correct", right.sum(dim=(0, 1)))
        self._add("counted", mask.sum(dim=(0, 1)))
        self._add("blocks", mask.any(dim=2).sum())
        self._add("accepted", leading_matches(right[..., self.first_slot :]).sum())

    def _add(self, name: str, value: torch.Tensor) -> None:
        self._sums[name] = self._sums[name] + value if name in self._sums else value.clone()

    def sums(self) -> dict[str, torch.Tensor]:
        """What was added so far, on the CPU, for `merge`."""
        return {name: value.cpu() for name, value in self._sums.items()}

    def merge(self, sums: Mapping[str, torch.Tensor]) -> None:
        """Adds the `sums` of another tally, such as another process'."""
        for name, value in sums.items():
            self._add(name, value)

    def metrics(self) -> dict[str, float]:
        """Means so far: losses by counted slot, accuracies, and `eal_epoch`, the expected acceptance length.

        The last is 1 + the mean of leading matches of a block. Slots that never counted are left out, so no value is a
        NaN; nothing is known, and given, where no slot counted at all.
        """
        found = {name: value.tolist() for name, value in self._sums.items()}
        slots = found.get("slots", 0)
        if not slots:
            return {}
        means = {
            f"{name.removeprefix('loss/')}_epoch": total / slots
            for name, total in found.items()
            if name.startswith("loss/")
        }
        means["full_acc_epoch"] = sum(found["correct"]) / slots
        means["eal_epoch"] = 1 + found["accepted"] / found["blocks"]
        for slot in range(self.first_slot, self.block_size):
            if found["counted"][slot]:
                means[f"position_{slot}_acc_epoch"] = found["correct"][slot] / found["counted"][slot]
        return means
