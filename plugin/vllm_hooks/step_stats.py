"""The hook that tells the front end, step by step, what was drafted, how long it took and what the encoder did."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from plugin.drafts.steps import StepStats
from plugin.encoder_counts import EncoderCounts
from plugin.vllm_hooks.hook import HookError, replace


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A step as it was scheduled. `steady`: every request in it verifies `k` tokens, none is admitted or resumed, and
    no prompt is being encoded beside them.
    """

    k: int
    num_requests: int
    steady: bool

    @classmethod
    def of(cls, output: Any) -> "Scheduled":
        """From vLLM's `SchedulerOutput`."""
        k, tokens = output.num_spec_tokens_to_schedule, output.num_scheduled_tokens
        drafts = output.scheduled_spec_decode_tokens
        steady = bool(tokens) and not output.scheduled_new_reqs and output.ec_manager_metadata is None
        steady = steady and not output.scheduled_cached_reqs.resumed_req_ids
        steady = steady and all(n == 1 + k and len(drafts.get(name, ())) == k for name, n in tokens.items())
        return cls(k, len(tokens), steady)


@dataclass(slots=True)
class StepClock:
    """What one scheduler knows about its steps, which end in the order in which they were scheduled.

    With asynchronous scheduling the next step is scheduled, and launched, while one is being computed: an admission
    there takes the host's time from it.
    """

    now: Callable[[], float] = time.monotonic
    in_flight: deque[Scheduled] = field(default_factory=deque)
    last: Scheduled | None = None
    last_end: float = 0.0
    drafts: dict[int, list[int]] = field(default_factory=dict)

    def scheduled(self, output: Any) -> None:
        self.in_flight.append(Scheduled.of(output))

    def verified(self, num_drafts: int, num_accepted: int) -> None:
        """A request's draft: by its length, the number of drafts and then of accepted tokens by position."""
        counts = self.drafts.setdefault(num_drafts, [0] * (1 + num_drafts))
        for i in range(1 + min(num_accepted, num_drafts)):
            counts[i] += 1

    def ended(self, idle: bool) -> StepStats | None:
        """The oldest step in flight, which ends now. `idle`: no request is left running behind it."""
        if not self.in_flight:
            return None
        step, end = self.in_flight.popleft(), self.now()
        alike = [self.last, step, *self.in_flight]
        attributable = all(s is not None and s.steady and s.k == step.k for s in alike)
        seconds = end - self.last_end if attributable else None
        self.last, self.last_end = None if idle else step, end
        drafts = {k: (counts[0], tuple(counts[1:])) for k, counts in self.drafts.items()}
        self.drafts = {}
        return StepStats(step.k, step.num_requests, seconds, drafts) if step.num_requests else None


def _clock(scheduler: Any) -> StepClock | None:
    """The clock of a scheduler of T5Gemma 2 with a draft, made when it is first asked for."""
    if not scheduler.is_encoder_decoder or scheduler.num_spec_tokens == 0:
        return None
    clock: StepClock = scheduler.__dict__.setdefault("_t5gemma2_clock", StepClock())
    return clock


def steps_beside_vllms_statistics() -> None:
    """vLLM's own statistics of a step leave out how long it took, add up drafts of different lengths, and say nothing
    about drafting where a step verifies no draft, which is what a speed-up is measured against. Here a `StepStats`
    goes with them to the stat loggers (`plugin.drafts.steps`), in one more field, and what the encoder's
    cache did (`plugin.encoder_counts`), in another; vLLM's own stay as they are.

    Unnecessary once `SchedulerStats` has the step's duration, and drafts by their length.
    """
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine import EngineCoreOutputs
    from vllm.v1.metrics.stats import SchedulerStats

    if getattr(Scheduler.make_stats, "_t5gemma2", False):
        return
    if EngineCoreOutputs.__annotations__.get("scheduler_stats") != SchedulerStats | None:
        raise HookError("vLLM's EngineCoreOutputs has no scheduler_stats any more: see plugin/vllm_hooks")

    @dataclass
    class OwnSchedulerStats(SchedulerStats):
        """vLLM's statistics of a step, and ours."""

        draft_step: StepStats | None = None
        encoder_counts: EncoderCounts | None = None

    def scheduling(stock: Any) -> Any:
        def schedule(self: Any, throttle_prefills: bool = False) -> Any:
            output = stock(self, throttle_prefills)
            if (clock := _clock(self)) is not None:
                clock.scheduled(output)
            return output

        return schedule

    def verifying(stock: Any) -> Any:
        def make_spec_decoding_stats(
            self: Any,
            spec_decoding_stats: Any,
            num_draft_tokens: int,
            num_accepted_tokens: int,
            num_invalid_spec_tokens: dict[str, int] | None,
            request_id: str,
        ) -> Any:
            if (clock := _clock(self)) is not None and self.log_stats:
                refused = (num_invalid_spec_tokens or {}).get(
                    request_id, 0
                )  # by a grammar, before the verifier
                clock.verified(num_draft_tokens - refused, num_accepted_tokens)
            return stock(
                self,
                spec_decoding_stats,
                num_draft_tokens,
                num_accepted_tokens,
                num_invalid_spec_tokens,
                request_id,
            )

        return make_spec_decoding_stats

    def making(stock: Any) -> Any:
        def make_stats(self: Any, *args: Any, **kwargs: Any) -> Any:
            stats = stock(self, *args, **kwargs)
            take_counts = getattr(self.encoder_cache_manager, "take_counts", None)
            if take_counts is None:  # another model
                return stats
            clock = _clock(self)
            step = None if clock is None else clock.ended(idle=not self.running)
            if stats is None:
                return None
            return OwnSchedulerStats(**vars(stats), draft_step=step, encoder_counts=take_counts())

        return make_stats

    replace(Scheduler, "schedule", ("self", "throttle_prefills"), scheduling)
    parameters = (
        "self",
        "spec_decoding_stats",
        "num_draft_tokens",
        "num_accepted_tokens",
        "num_invalid_spec_tokens",
        "request_id",
    )
    replace(Scheduler, "make_spec_decoding_stats", parameters, verifying)
    parameters = (
        "self",
        "spec_decoding_stats",
        "kv_connector_stats",
        "cudagraph_stats",
        "perf_stats",
        "ec_connector_stats",
    )
    replace(Scheduler, "make_stats", parameters, making)
    # msgspec reads the field's type when the front end makes its first decoder, after plugins are loaded.
    EngineCoreOutputs.__annotations__["scheduler_stats"] = OwnSchedulerStats | None
