"""The hook that tells the front end, step by step, what was drafted, how long it took and what the encoder did."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from plugin.drafts.steps import StepStats
from plugin.encoder_counts import EncoderCounts
from plugin.vllm_hooks.hook import HookError, replace


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A step as it was scheduled. `steady`: every request in it was given `k` drafts, of which it verifies those that a
    grammar left, none is admitted or resumed, and no prompt is being encoded beside them. `cut`: by request, how many
    drafts it was given, where a grammar had cut some off before the step was scheduled.
    """

    k: int
    num_requests: int
    steady: bool
    at: float = 0.0
    cut: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, output: Any, at: float = 0.0, cut: Mapping[str, int] | None = None) -> "Scheduled":
        """From vLLM's `SchedulerOutput`, which was made at that time; of `cut` what is in it."""
        k, tokens = output.num_spec_tokens_to_schedule, output.num_scheduled_tokens
        drafts = {name: len(ids) for name, ids in output.scheduled_spec_decode_tokens.items()}
        cut = {name: given for name, given in (cut or {}).items() if name in tokens}
        steady = bool(tokens) and not output.scheduled_new_reqs and output.ec_manager_metadata is None
        steady = steady and not output.scheduled_cached_reqs.resumed_req_ids
        for name, n in tokens.items():
            left = drafts.get(name, 0)
            steady = steady and n == 1 + left and cut.get(name, left) == k
        return cls(k, len(tokens), steady, at, cut)


@dataclass(slots=True)
class StepClock:
    """What one scheduler knows about its steps, which end in the order in which they were scheduled.

    With asynchronous scheduling the next step is scheduled, and launched, while one is being computed: an admission
    there takes the host's time from it.
    """

    now: Callable[[], float] = time.monotonic
    in_flight: deque[Scheduled] = field(default_factory=deque)
    last: Scheduled | None = None
    last_end: float | None = None
    wall: float = 0.0
    idle: float = 0.0
    drafts: dict[int, list[int]] = field(default_factory=dict)
    before_trimming: dict[int, list[int]] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    """Of the step to be scheduled, as `Scheduled.cut`."""

    def scheduled(self, output: Any) -> None:
        self.in_flight.append(Scheduled.of(output, self.now(), self.cut))
        self.cut = {}

    def verified(self, num_drafts: int, num_accepted: int, given: int, request_id: str = "") -> None:
        """A request's draft: by its length, the number of drafts and then of accepted tokens by position; and the same
        by the number of drafts that the step was `given`.
        """
        _count(self.drafts, num_drafts, num_accepted)
        if self.in_flight:
            given = self.in_flight[0].cut.pop(request_id, given)
        _count(self.before_trimming, given, num_accepted)

    def ended(self, idle: bool) -> StepStats | None:
        """The oldest step in flight, which ends now. `idle`: no request is left running behind it."""
        if not self.in_flight:
            return None
        step, end = self.in_flight.popleft(), self.now()
        alike = [self.last, step, *self.in_flight]
        attributable = all(s is not None and s.steady and s.k == step.k for s in alike)
        before = step.at if self.last_end is None else self.last_end
        seconds = end - before if attributable else None
        self.wall += end - before
        self.idle += max(0.0, step.at - before)
        self.last, self.last_end = None if idle else step, end
        for given in step.cut.values():  # of which a grammar left nothing to verify
            _count(self.before_trimming, given, 0)
        drafts, before_trimming = _told(self.drafts), _told(self.before_trimming)
        self.drafts, self.before_trimming = {}, {}
        if before_trimming == drafts:
            before_trimming = {}
        if not step.num_requests:  # it encoded a prompt, for the steps to come
            return None
        wall, waited, self.wall, self.idle = self.wall, self.idle, 0.0, 0.0
        return StepStats(step.k, step.num_requests, seconds, drafts, before_trimming, wall, waited)


def _count(counted: dict[int, list[int]], num_drafts: int, num_accepted: int) -> None:
    counts = counted.setdefault(num_drafts, [0] * (1 + num_drafts))
    for i in range(1 + min(num_accepted, num_drafts)):
        counts[i] += 1


def _told(counted: dict[int, list[int]]) -> dict[int, tuple[int, tuple[int, ...]]]:
    return {k: (counts[0], tuple(counts[1:])) for k, counts in counted.items()}


def clock_of(scheduler: Any) -> StepClock | None:
    """The clock of a scheduler of T5Gemma 2 with a draft, made when it is first asked for."""
    if not scheduler.is_encoder_decoder or scheduler.num_spec_tokens == 0:
        return None
    clock: StepClock = scheduler.__dict__.setdefault("_t5gemma2_clock", StepClock())
    return clock


def note_cut_drafts(scheduler: Any, draft_token_ids: Any) -> None:
    """What a grammar has just cut off the drafts of the next step, given vLLM's `DraftTokenIds` of which it was cut."""
    if (clock := clock_of(scheduler)) is None:
        return
    clock.cut = {}
    for name, tokens in zip(draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=True):
        request = scheduler.requests.get(name)
        if request is None or request.is_finished() or request.is_prefill_chunk:
            continue
        if len(request.spec_token_ids) < len(tokens):
            clock.cut[name] = len(tokens)


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
            if (clock := clock_of(self)) is not None:
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
            if (clock := clock_of(self)) is not None and self.log_stats:
                refused = (num_invalid_spec_tokens or {}).get(
                    request_id, 0
                )  # by a grammar, or left out by adaptive verification
                clock.verified(num_draft_tokens - refused, num_accepted_tokens, num_draft_tokens, request_id)
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
            clock = clock_of(self)
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
