"""The host's time of an engine's steps by phase, and by function: clocks around known functions, and a profile's sums.

Phases are timed where they are called: a clock stands in the place of each function of `PLACES` that this vLLM and this
runner have. A phase's own time is that of its calls without the phases that were called within.
"""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

OUTSIDE = "outside the engine's step"

PLACES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("engine: the rest of the step", ("engine.step",)),
    ("core: the rest of the step", ("core.step_fn",)),
    ("schedule", ("core.scheduler.schedule",)),
    ("runner: the rest of execute_model", ("runner.execute_model",)),
    ("requests that end", ("runner.finish_requests",)),
    ("encoder: launch", ("runner.model_state.begin_prompts", "runner._execute_mm_encoder")),
    ("requests that join", ("runner.add_requests",)),
    ("requests that go on", ("runner.update_requests", "runner.block_tables.apply_staged_writes")),
    ("state of the batch", ("runner.gather_batch_req_state", "runner._update_states")),
    (
        "prepare inputs",
        ("runner.prepare_inputs", "runner._prepare_inputs", "plugin.vllm_hooks.v2.steps:next_batch"),
    ),
    (
        "prepare attention",
        (
            "runner.prepare_attn",
            "runner.model_state.prepare_attn",
            "runner._build_attention_metadata",
        ),
    ),
    ("encoder: states to pages", ("runner.model_state.prepare_inputs_embeds",)),
    ("tell the verify graph its batch", ("runner.cudagraph_manager.sampling.stage",)),
    ("launch of the verify graph", ("runner.cudagraph_manager.run_fullgraph",)),
    ("verifier without a graph", ("runner.model.forward",)),
    ("runner: the rest of sample_tokens", ("runner.sample_tokens",)),
    ("sample", ("runner.sample", "runner._sample")),
    ("begin to copy the answer", ("vllm.v1.worker.gpu.model_runner:AsyncOutput.__init__",)),
    ("postprocess", ("runner.postprocess_sampled", "runner._bookkeeping_sync")),
    ("propose: the rest", ("runner.speculator.propose", "runner.propose_draft_token_ids")),
    ("propose: prepare", ("vllm.v1.worker.gpu.spec_decode.dflash.speculator:prepare_dflash_inputs",)),
    (
        "propose: launch of the draft's graph",
        (
            "runner.speculator.query_cudagraph_manager.run_fullgraph",
            "runner.speculator.context_cudagraph_manager.run_fullgraph",
        ),
    ),
    ("propose: draft without a graph", ("runner.speculator._generate_draft", "runner.drafter.model.forward")),
    ("hand on the drafts", ("runner.draft_tokens_handler.set_draft_tokens",)),
    ("wait for the answer, and read it", ("vllm.v1.worker.gpu.async_utils:AsyncOutput.get_output",)),
    ("update from output", ("core.scheduler.update_from_output",)),
    ("output processing", ("engine.output_processor.process_outputs",)),
)
"""Phases in a step's order, each with the functions that do it: of a live object, or of a module behind `module:`. The
V1 and the V2 runner have other ones, and a graph replaces a forward pass."""


@dataclass(slots=True)
class Times:
    """Seconds and calls of a phase or a function over some steps."""

    own: float = 0.0
    whole: float = 0.0
    calls: float = 0.0


@dataclass(slots=True)
class PhaseClock:
    """Times of phases in one thread; it counts between `start` and `stop` only."""

    now: Callable[[], float] = time.perf_counter
    times: dict[str, Times] = field(default_factory=dict)
    running: bool = False
    began: float = 0.0
    _within: list[float] = field(default_factory=lambda: [0.0])
    """Seconds of the phases that were called within each of the open ones."""

    def start(self) -> None:
        self.running, self._within, self.began = True, [0.0], self.now()

    def stop(self) -> None:
        """Ends; what belongs to no phase is `OUTSIDE`."""
        seconds = self.now() - self.began
        self.running = False
        outside = self.times.setdefault(OUTSIDE, Times())
        outside.own += seconds - self._within[0]
        outside.whole += seconds

    def around(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, timed as `phase`."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            if not self.running:
                return function(*args, **kwargs)
            self._within.append(0.0)
            began = self.now()
            try:
                return function(*args, **kwargs)
            finally:
                seconds = self.now() - began
                within = self._within.pop()
                self._within[-1] += seconds
                times = self.times.setdefault(phase, Times())
                times.own += seconds - within
                times.whole += seconds
                times.calls += 1

        return timed


@contextmanager
def timed(clock: PhaseClock, roots: Mapping[str, Any]) -> Iterator[list[str]]:
    """Puts the clock around all `PLACES` that are there, and yields the names of those that are not.

    Args:
        clock: what counts.
        roots: live objects by the first word of a place.
    """
    undo: list[Callable[[], None]] = []
    missing = []
    try:
        for phase, places in PLACES:
            for place in places:
                owner, name = _owner(place, roots)
                if getattr(owner, name, None) is None:
                    missing.append(place)
                    continue
                undo.append(put(owner, name, clock.around(phase, getattr(owner, name))))
        yield missing
    finally:
        for back in reversed(undo):
            back()


def _owner(place: str, roots: Mapping[str, Any]) -> tuple[Any, str]:
    """The object that has the function, None where that is missing, and the function's name in it."""
    module, _, path = place.rpartition(":")
    *inner, name = path.split(".")
    try:
        owner: Any = importlib.import_module(module) if module else roots[inner.pop(0)]
    except (ImportError, KeyError):
        return None, name
    for each in inner:
        owner = getattr(owner, each, None)
    return owner, name


def put(owner: Any, name: str, value: Any) -> Callable[[], None]:
    """Sets an attribute and returns what undoes that: an object that had it from its class has it from there again."""
    if name in vars(owner):
        before = vars(owner)[name]
        setattr(owner, name, value)
        return lambda: setattr(owner, name, before)
    setattr(owner, name, value)
    return lambda: delattr(owner, name)


def functions(stats: Mapping[tuple[str, int, str], tuple[Any, ...]], steps: int) -> dict[str, Times]:
    """Seconds and calls a step by `module:function`, from the `stats` of a `pstats.Stats`.

    Functions of one name in one module are added up, so that a cumulative time may hold another one's twice.
    """
    found: dict[str, Times] = {}
    for (file, _, function), (_, calls, own, whole, *_) in stats.items():
        times = found.setdefault(short_name(file, function), Times())
        times.own += own / steps
        times.whole += whole / steps
        times.calls += calls / steps
    return found


def short_name(file: str, function: str) -> str:
    """`gpu/model_runner:sample`, from a profile's file and function; a built-in function without the words around."""
    if file == "~":
        # Some are told by their address, which is another in every process.
        return (
            re.sub(r" at 0x\w+", "", function.strip("<>"))
            .removeprefix("built-in method ")
            .removeprefix("method ")
        )
    parts = file.removesuffix(".py").removesuffix("/__init__").split("/")
    return f"{'/'.join(parts[-2:])}:{function}"


def difference(times: Mapping[str, Times], base: Mapping[str, Times]) -> dict[str, Times]:
    """`times` without `base`, of all that either has."""
    none = Times()
    found = {}
    for name in {**times, **base}:
        one, other = times.get(name, none), base.get(name, none)
        found[name] = Times(one.own - other.own, one.whole - other.whole, one.calls - other.calls)
    return found


def table(title: str, times: Mapping[str, Times], top: int | None = None) -> str:
    """Microseconds and calls, for reading: all in their order, or the `top` of most own time, be it saved or spent."""
    rows: Sequence[tuple[str, Times]] = list(times.items())
    if top is not None:
        rows = sorted(rows, key=lambda row: -abs(row[1].own))[:top]
    lines = [title, "       own    within     calls"]
    lines += [f"{1e6 * t.own:10.1f}{1e6 * t.whole:10.1f}{t.calls:10.2f}  {name}" for name, t in rows]
    return "\n".join(lines)


def in_order(times: Mapping[str, Times], steps: int) -> dict[str, Times]:
    """The phases that were seen, a step, in a step's order."""
    order = [*(phase for phase, _ in PLACES), OUTSIDE]
    return {
        phase: Times(times[phase].own / steps, times[phase].whole / steps, times[phase].calls / steps)
        for phase in order
        if phase in times
    }
