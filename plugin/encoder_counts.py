"""What engine steps say of the encoder and its cache, and where a stat logger finds it.

The engine core sends it with vLLM's own statistics, one stream for each data-parallel engine. No vLLM here: the front
end reads it.
"""

from dataclasses import dataclass
from typing import Any, Final

COUNTS_FIELD: Final = "encoder_counts"
"""The field of vLLM's `SchedulerStats` that carries it."""


@dataclass(slots=True)
class EncoderCounts:
    """Sums over the steps since the last message.

    Attributes:
        hits: requests (each sample is one) whose prompt's states were there already.
        misses: requests for whose prompt the encoder ran.
        tokens_saved, tokens_encoded: the prompt tokens of the hits, of the misses.
        bytes_held: of the states that the worker keeps, now.
        requests: that were admitted with their states and have not ended, now.
    """

    hits: int = 0
    misses: int = 0
    tokens_saved: int = 0
    tokens_encoded: int = 0
    bytes_held: int = 0
    requests: int = 0


def encoder_counts(scheduler_stats: Any) -> EncoderCounts | None:
    """The counts in vLLM's `SchedulerStats`, as a stat logger is given them; None where there are none."""
    counts: EncoderCounts | None = getattr(scheduler_stats, COUNTS_FIELD, None)
    return counts
