"""What was measured of requests that join others, as tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.engine.host_joins import ADMITS, KINDS, OTHERS, Joins, Step
from benchmarks.engine.phases import table

PHASES = 8
"""Of one of the longest calls."""


def spread(seconds: Sequence[float]) -> str:
    """Number, median, ninth tenth and maximum, in microseconds."""
    ordered = sorted(seconds)
    tenth = ordered[min(len(ordered) - 1, 9 * len(ordered) // 10)]
    values = (statistics.median(ordered), tenth, ordered[-1])
    return f"{len(ordered):6d}" + "".join(f"{1e6 * value:10.0f}" for value in values)


def head(name: str, found: Joins) -> str:
    """Durations of the three kinds of calls, and what a client sees of them."""
    scheduling = "asynchronous" if found.async_scheduling else "synchronous"
    lines = [
        f"{name}: {found.admit} join {found.beside} once in {found.every} calls of the engine's step "
        f"({scheduling} scheduling)",
        "  calls         number    median       90%   longest  us, undisturbed",
    ]
    lines += [f"  {kind:13} {spread(found.seconds[kind])}" for kind in KINDS if kind in found.seconds]
    if OTHERS in found.seconds:
        every = [each for seconds in found.seconds.values() for each in seconds]
        ratio = max(every) / statistics.median(found.seconds[OTHERS])
        lines.append(f"  the longest call is {ratio:.2f} times the median of {OTHERS}")
    if found.adding:
        adding = 1e6 * statistics.median(found.adding)
        lines.append(f"  the front end takes {adding:.0f} us to add a request")
    if found.first_tokens:
        first = 1e6 * statistics.median(found.first_tokens)
        lines.append(f"  {first:.0f} us from adding the first of them to the last one's token")
    if found.gpu_busy:
        lines.append(
            f"  the GPU is busy for {1e6 * found.gpu_busy:.0f} us of a call while none joins, and for "
            f"{1e6 * found.gpu_admission:.0f} us more for an admission"
        )
    return "\n".join(lines)


def longest(step: Step) -> str:
    """One call: what it did, and the phases that took most of it."""
    counts = ", ".join(f"{name} {count}" for name, count in step.did.items()) or "nothing was scheduled"
    ordered = sorted(step.phases.items(), key=lambda phase: -phase[1].own)[:PHASES]
    phases = ", ".join(f"{name} {1e6 * times.own:.0f}" for name, times in ordered)
    return f"  {1e6 * step.seconds:.0f} us, of those {step.kind} ({counts}): {phases}"


def report(name: str, found: Joins, top: int) -> str:
    """All that was found: admitting calls, those behind them and the others by phase, the first and the last by
    function, and the longest calls."""
    by_phase = f"{name}: us a call by phase"
    by_function = f"{name}: us a call by function under cProfile"
    phases, functions = found.phases, found.functions
    lines = [head(name, found)]
    lines += [table(f"{by_phase}, {kind}", phases[kind]) for kind in KINDS if kind in phases]
    lines += [
        table(f"{by_function}, {kind}", functions[kind], top)
        for kind in (ADMITS, OTHERS)
        if kind in functions
    ]
    lines.append(f"{name}: the longest of the timed calls")
    lines += [longest(step) for step in found.longest]
    if found.missing:
        lines.append(f"not in this engine: {', '.join(found.missing)}")
    return "\n".join(lines)
