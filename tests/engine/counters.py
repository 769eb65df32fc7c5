"""What an engine of the tests counts, and says step by step, as its stat loggers are told."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import StatLoggerBase

from app.drafts.encoder_totals import EncoderTotals
from plugin.drafts.steps import StepStats, step_stats
from plugin.encoder_counts import encoder_counts


@dataclass
class Counters:
    """Sums over engine steps, as vLLM reports them to its stat loggers."""

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    preemptions: int = 0
    generated_tokens: int = 0

    def __sub__(self, other: Counters) -> Counters:
        positions = {
            k: v - other.accepted_per_position.get(k, 0) for k, v in self.accepted_per_position.items()
        }
        return Counters(
            self.drafts - other.drafts,
            self.draft_tokens - other.draft_tokens,
            self.accepted_tokens - other.accepted_tokens,
            positions,
            self.preemptions - other.preemptions,
            self.generated_tokens - other.generated_tokens,
        )

    def copy(self) -> Counters:
        return self - Counters()

    @property
    def acceptance(self) -> float:
        """Accepted over drafted tokens."""
        return self.accepted_tokens / self.draft_tokens


class Recorder(StatLoggerBase):
    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        self.counters = Counters()
        self.steps: list[StepStats] = []
        self.encoder = EncoderTotals()

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        if (encoder := encoder_counts(scheduler_stats)) is not None:
            self.encoder.record(engine_idx, encoder)
        if (step := step_stats(scheduler_stats)) is not None:
            self.steps.append(step)
        spec = scheduler_stats.spec_decoding_stats if scheduler_stats else None
        if spec is not None:
            self.counters.drafts += spec.num_drafts
            self.counters.draft_tokens += spec.num_draft_tokens
            self.counters.accepted_tokens += spec.num_accepted_tokens
            for position, accepted in enumerate(spec.num_accepted_tokens_per_pos):
                self.counters.accepted_per_position[position] += accepted
        if iteration_stats is not None:
            self.counters.preemptions += iteration_stats.num_preempted_reqs
            self.counters.generated_tokens += iteration_stats.num_generation_tokens

    def log_engine_initialized(self) -> None:
        """Nothing to say."""
