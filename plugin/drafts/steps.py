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
            has another K, or a request that was given another number of drafts than that.
        drafts: by the number of drafts verified for a request: how many drafts had it, and at each of its positions
            how many tokens were accepted. 0 is there only for drafts of which a grammar refused every token, or
            adaptive verification left out every token.
        before_trimming: the same by the number of drafts before a grammar refused some and adaptive verification left
            some out, those counting as not accepted; empty where it is the same. What a grammar refuses is no token
            that the verifier could have chosen.
        wall, idle: seconds from the end of the step before, whatever the step did, and those of them in which no step
            was under way; 0 where nobody measured them.
        tokens: output tokens, without what was accepted behind an output's end; None where nobody counted them.
    """

    k: int
    num_requests: int
    seconds: float | None = None
    drafts: dict[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    before_trimming: dict[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    wall: float = 0.0
    idle: float = 0.0
    tokens: int | None = None

    @property
    def drafted(self) -> dict[int, tuple[int, tuple[int, ...]]]:
        """By the number of drafts that the step was given, whatever it verified of them: what K brought."""
        return self.before_trimming or self.drafts

    @property
    def num_tokens(self) -> int:
        """Output tokens, as far as they are known: one for each request and those that were accepted."""
        if self.tokens is not None:
            return self.tokens
        return self.num_requests + sum(sum(accepted) for _, accepted in self.drafts.values())


def step_stats(scheduler_stats: Any) -> StepStats | None:
    """The step in vLLM's `SchedulerStats`, as a stat logger is given them; None where there is none."""
    step: StepStats | None = getattr(scheduler_stats, STEP_FIELD, None)
    return step
