"""Per-request numbers in vLLM's own schema (`metrics.speculative_decoding`), which benchmark tools already read.

vLLM gives them for single sequences only; here every choice has its own, and the request has their sum. They count what
the client received: vLLM's own also count what the last step accepted behind the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pydantic import BaseModel

from app.config.settings import Level
from app.engine import RequestTiming, SpecMetrics


class SpeculativeDecoding(BaseModel):
    """Acceptance of draft tokens. `acceptance_histogram[j]`: draft steps that had exactly j tokens accepted;
    `mean_acceptance_length` = 1 + accepted / steps, `draft_acceptance_rate` = accepted / draft tokens (null: no step).
    `steps_by_k`: steps by the number of draft tokens that they verified, those without a draft under 0.
    """

    mean_acceptance_length: float | None
    draft_acceptance_rate: float | None
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int
    steps_by_k: dict[int, int]
    per_step_accepted: list[int] | None = None
    per_step_drafted: list[int] | None = None


class RequestMetrics(BaseModel):
    """Times in milliseconds, of single-sequence requests only: several sequences overlap in time."""

    time_to_first_token_ms: float | None = None
    generation_time_ms: float | None = None
    queue_time_ms: float | None = None
    mean_itl_ms: float | None = None
    tokens_per_second: float | None = None
    speculative_decoding: SpeculativeDecoding | None = None


def speculative_decoding(parts: Iterable[SpecMetrics], level: Level) -> SpeculativeDecoding | None:
    """One or several sequences' acceptance, sums first and ratios last; None without any or at level none.

    The step lists are given for one sequence only, since steps of several have no common order.
    """
    parts = list(parts)
    if level == "none" or not parts:
        return None
    by_k = Counter(k for part in parts for k in part.per_step_drafted)
    k = max(by_k, default=0) or max(part.num_spec_tokens for part in parts)
    size = min(1 + k, max(len(part.histogram) for part in parts))
    histogram = [sum(part.histogram[j] for part in parts if j < len(part.histogram)) for j in range(size)]
    steps = sum(histogram)
    accepted = sum(j * count for j, count in enumerate(histogram))
    drafted = sum(part.num_draft_tokens for part in parts)
    result = SpeculativeDecoding(
        mean_acceptance_length=1 + accepted / steps if steps else None,
        draft_acceptance_rate=accepted / drafted if drafted else None,
        acceptance_histogram=histogram,
        num_spec_steps=steps,
        num_accepted_draft_tokens=accepted,
        num_draft_tokens=drafted,
        num_spec_tokens=k,
        steps_by_k=dict(sorted(by_k.items())),
    )
    if level == "detailed" and len(parts) == 1:
        result.per_step_accepted = list(parts[0].per_step_accepted)
        result.per_step_drafted = list(parts[0].per_step_drafted)
    return result


def request_metrics(
    parts: Iterable[SpecMetrics], level: Level, timing: RequestTiming | None = None, tokens: int = 0
) -> RequestMetrics | None:
    """Acceptance and, given `timing` of a request of `tokens` output tokens, its times; None when there is nothing."""
    spec = speculative_decoding(parts, level)
    if level == "none" or (spec is None and timing is None):
        return None
    found = {"speculative_decoding": spec, **({} if timing is None else _times(timing, tokens))}
    return RequestMetrics.model_validate({name: value for name, value in found.items() if value is not None})


def _times(timing: RequestTiming, tokens: int) -> dict[str, float | None]:
    first, decode = timing.first_token_s, timing.decode_s
    whole = None if first is None or decode is None else first + decode
    return {
        "queue_time_ms": None if timing.queue_s is None else timing.queue_s * 1000,
        "time_to_first_token_ms": None if first is None else first * 1000,
        "generation_time_ms": None if decode is None else decode * 1000,
        "mean_itl_ms": decode * 1000 / (tokens - 1) if decode is not None and tokens > 1 else None,
        "tokens_per_second": tokens / whole if whole else None,
    }
