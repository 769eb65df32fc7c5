"""What a draft did on a few canned prompts, and the sentence that says when that is too little.

A useless draft changes no answer, so nothing else would tell. `app.probing` sends the prompts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

USELESS = 1.1
"""Tokens a step, the verifier's own one included, below which a draft costs more than it gives: drafting a block and
verifying it makes a step longer than by a tenth.
"""
PROMISED_SHARE = 0.5
"""Of the accepted tokens a step that the draft's own val_metrics.json names, below which something is wrong."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Sums over draft steps. `promised` is the mean acceptance length that val_metrics.json names, if any."""

    prompts: int
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    promised: float | None = None

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted / drafts."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else None

    @property
    def warning(self) -> str | None:
        """One sentence with the figures when the draft proves useless, or far from what it was, else None."""
        length = self.mean_acceptance_length
        if length is None:
            return None
        drafted = (
            f"the draft gives {length:.2f} tokens a step on {self.prompts} canned prompts"
            f" ({self.accepted_tokens} of {self.draft_tokens} draft tokens accepted)"
        )
        if length < USELESS:
            return f"{drafted}, below {USELESS}: it costs more than it gives; serve without it (T5GEMMA_DRAFT=none)"
        if self.promised is not None and length - 1 < PROMISED_SHARE * (self.promised - 1):
            return f"{drafted}, far below the {self.promised:.2f} that its val_metrics.json names"
        return None

    def to_json(self) -> dict[str, Any]:
        """JSON-ready: the figures of GET /drafts."""
        return {
            "prompts": self.prompts,
            "drafts": self.drafts,
            "draft_tokens": self.draft_tokens,
            "accepted_tokens": self.accepted_tokens,
            "acceptance_rate": self.accepted_tokens / self.draft_tokens if self.draft_tokens else None,
            "mean_acceptance_length": self.mean_acceptance_length,
            "promised_acceptance_length": self.promised,
            "warning": self.warning,
        }


def promised_length(folder: Path, k: int, max_k: int) -> float | None:
    """The mean acceptance length at K = `k` that a draft's val_metrics.json names: of served drafts, or of its last
    epoch, which is at its largest K; None where it names none.
    """
    try:
        metrics = json.loads((folder / "val_metrics.json").read_text(encoding="utf-8"))
        named = metrics.get(f"fresh_mean_acceptance_length_k{k}")
        named = metrics.get("eal_epoch") if named is None and k == max_k else named
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return float(named) if isinstance(named, int | float) and 1 <= named <= k + 1 else None
