"""GPU kernels on the critical path: what each adds to the time at which the work so far is done.

A kernel that is launched while the one before it drains (programmatic dependent launch) spends part of its duration
waiting for it: durations of such kernels overlap, and their sum counts that time twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """One kernel or copy on the device; times in microseconds."""

    name: str
    start: float
    end: float


@dataclass(slots=True)
class Share:
    """What the kernels of one name did.

    Attributes:
        count: how many there were.
        critical_us: their ends minus the later of their own start and the latest end of what started before them.
        gap_us: time before their starts in which nothing ran.
        duration_us: their durations, which may overlap with those of others.
    """

    count: int = 0
    critical_us: float = 0.0
    gap_us: float = 0.0
    duration_us: float = 0.0


def shares(events: Iterable[Event]) -> dict[str, Share]:
    """By name; `critical_us` of all together is the time in which something ran, and `gap_us` the rest."""
    found: dict[str, Share] = defaultdict(Share)
    reached: float | None = None
    for event in sorted(events, key=lambda e: (e.start, e.end)):
        before = event.start if reached is None else reached
        share = found[event.name]
        share.count += 1
        share.duration_us += event.end - event.start
        share.critical_us += max(event.end - max(event.start, before), 0.0)
        share.gap_us += max(event.start - before, 0.0)
        reached = max(event.end, before)
    return dict(found)


def device_events(profiler: Any) -> list[Event]:
    """What `torch.profiler.profile` recorded on the device."""
    from torch.autograd import DeviceType

    return [
        Event(e.name, float(e.time_range.start), float(e.time_range.end))
        for e in profiler.events()
        if e.device_type == DeviceType.CUDA
    ]


def path_table(title: str, rows: dict[str, dict[str, float]], count: int = 15) -> str:
    """The names that add most to a replay, for reading; `rows` as `worker.graph_path` gives them for one graph."""
    total = sum(row["critical_us"] + row["gap_us"] for row in rows.values())
    lines = [f"{title}: {total:.1f} us a replay (launches, on the critical path, gap before, duration)"]
    longest = sorted(rows.items(), key=lambda item: -item[1]["critical_us"] - item[1]["gap_us"])
    for name, row in longest[:count]:
        us = " ".join(f"{row[field]:8.1f}" for field in ("count", "critical_us", "gap_us", "duration_us"))
        lines.append(f"  {us}  {name[:100]}")
    return "\n".join(lines)
