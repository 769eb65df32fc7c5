"""What was measured of the host's part in an engine's decode steps, and its tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.engine.phases import Times, difference, table


@dataclass(slots=True)
class Measured:
    """The decode steps of one arm and batch; times are seconds a step.

    Attributes:
        steps_per_second: undisturbed, one value a round.
        steps: steps of those rounds.
        gpu_busy: time in which something ran on the GPU; 0 without one.
        async_scheduling: whether a step is scheduled while the one before it is computed.
        phases: by phase; none of an engine whose core is in a process of its own.
        phases_step: a step while the phases were timed.
        functions: by function, under cProfile; with `functions_step`, a step under it.
        missing: functions that should have been timed and that this engine has not.
    """

    async_scheduling: bool
    steps_per_second: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    gpu_busy: float = 0.0
    phases: dict[str, Times] = field(default_factory=dict)
    phases_step: float = 0.0
    functions: dict[str, Times] = field(default_factory=dict)
    functions_step: float = 0.0
    missing: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, sent: Mapping[str, Any]) -> Measured:
        """From its fields as `dataclasses.asdict` makes them and JSON sends them."""
        times = {
            kind: {name: Times(**each) for name, each in sent[kind].items()}
            for kind in ("phases", "functions")
        }
        return cls(**{**sent, **times})

    @property
    def rate(self) -> float:
        """Steps a second, the median of the rounds."""
        return statistics.median(self.steps_per_second)

    @property
    def gpu_share(self) -> float:
        """Share of an undisturbed step in which something runs on the GPU."""
        return self.gpu_busy * self.rate


def headline(name: str, batch: int, found: Measured) -> str:
    """Steps a second and the GPU's share."""
    rates = found.steps_per_second
    scheduling = "asynchronous" if found.async_scheduling else "synchronous"
    line = (
        f"{name}, batch {batch}: {found.rate:.1f} steps/s ({min(rates):.1f} ... {max(rates):.1f} in {len(rates)} "
        f"rounds of {min(found.steps)} steps or more, {scheduling} scheduling), {1e6 / found.rate:.0f} us a step"
    )
    if not found.phases:
        return line
    return f"{line}; the GPU is busy for {1e6 * found.gpu_busy:.0f} us of it, share {found.gpu_share:.3f}"


def report(name: str, batch: int, found: Measured, raw: Measured | None, top: int) -> str:
    """All that was found, for reading; beside `raw`, what the arm costs over it."""
    lines = [headline(name, batch, found)]
    if found.phases:
        # How much longer a step is for being timed: such numbers are shares, not what the step costs undisturbed.
        timed, profiled = found.phases_step * found.rate, found.functions_step * found.rate
        where = f"{name}, batch {batch}: us a step by"
        lines.append(table(f"{where} phase; timed, a step takes {timed:.2f} times as long", found.phases))
        title = f"{where} function; under cProfile a step takes {profiled:.2f} times as long"
        lines.append(table(title, found.functions, top))
        if raw is not None and raw.phases:
            where = f"{name} over raw, batch {batch}: us a step by"
            lines.append(table(f"{where} phase", difference(found.phases, raw.phases)))
            lines.append(table(f"{where} function", difference(found.functions, raw.functions), top))
    if found.missing:
        lines.append(f"not in this engine: {', '.join(found.missing)}")
    return "\n".join(lines)
