"""What one engine step says about drafting, and where a stat logger finds it.

The engine core fills in a `StepStats` for every step of a server with a draft (`plugin.vllm_hooks.step_stats`) and
sends it with vLLM's own statistics, one stream for each data-parallel engine. No vLLM here: the front end reads it.
"""

from dataclasses import dataclass, field
from typing import Any, Final

STEP_FIELD: Final = "draft_step"
"""The field of vLLM's `SchedulerStats` that carries it."""


@dataclass(frozen=True, slots=True)
class StepStats:
    """One engine step.

    Attributes:
        k: draft length in force when the step was scheduled, 0 for no draft. What the step verified had been drafted
            in the step before, so that after a change of K the first step still has drafts of the old one.
        num_requests: requests in the step.
        seconds: the step's duration, from the end of the step before to its own end; None where it says nothing about
            K: nothing ran before it, or it, the step before it or one in flight behind it admits or resumes a request,
            has another K, or a request with another number of drafts than that.
        drafts: by the number of drafts verified for a request: how many drafts had it, and at each of its positions
            how many tokens were accepted. 0 is there only for drafts of which a grammar refused every token.
    """

    k: int
    num_requests: int
    seconds: float | None = None
    drafts: dict[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)


def step_stats(scheduler_stats: Any) -> StepStats | None:
    """The step in vLLM's `SchedulerStats`, as a stat logger is given them; None where there is none."""
    step: StepStats | None = getattr(scheduler_stats, STEP_FIELD, None)
    return step
