"""Cores for the arms. Linux moves threads as it likes, an engine's loop beside its own front end or beside another
thread on one physical core, and which arm that hits changes from round to round.

Arms that wait use no core: they block on a pipe, a socket or the GPU's interrupt. So all of them have the same four,
and whichever is measured runs there alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TOPOLOGY = Path("/sys/devices/system/cpu")
EACH = 2
"""Cores of an arm's first process (its front end), and of those that it started (its engine)."""


@dataclass(frozen=True, slots=True)
class Cores:
    """Numbers of logical cores, each on a physical core of its own; `rest` is what others may use."""

    front: tuple[int, ...]
    engine: tuple[int, ...]
    rest: tuple[int, ...]


def choose(allowed: Iterable[int], topology: Path = TOPOLOGY) -> Cores | None:
    """The last `2 * EACH` physical cores of `allowed`; None where none would be left for anything else."""
    physical: dict[str, list[int]] = {}
    for core in sorted(allowed):
        try:
            name = (topology / f"cpu{core}" / "topology" / "thread_siblings_list").read_text().strip()
        except OSError:
            name = str(core)
        physical.setdefault(name, []).append(core)
    groups = list(physical.values())
    taken, rest = groups[-2 * EACH :], groups[: -2 * EACH]
    if not rest:
        return None
    first = tuple(group[0] for group in taken)
    return Cores(first[:EACH], first[EACH:], tuple(core for group in rest for core in group))


def descendants(pid: int, proc: Path = PROC) -> list[int]:
    """Processes that `pid` started, and those that they started; empty where there is no such folder."""
    children: dict[int, list[int]] = {}
    for stat in proc.glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:  # it has ended
            continue
        # "pid (name) state parent ...", where the name may hold anything.
        children.setdefault(int(text[text.rindex(")") + 2 :].split()[1]), []).append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found[1:]


def pin(pid: int, cores: Cores, proc: Path = PROC) -> None:
    """Hold every thread of the arm `pid` on its cores; threads that are started later inherit them."""
    _hold(pid, cores.front, proc)
    for child in descendants(pid, proc):
        _hold(child, cores.engine, proc)


def pin_all(pids: Sequence[int]) -> Cores | None:
    """Hold all arms on the same cores and this process off them; None where there are too few."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    cores = choose(os.sched_getaffinity(0))
    if cores is not None:
        for pid in pids:
            pin(pid, cores)
        os.sched_setaffinity(0, cores.rest)
    return cores


def _hold(pid: int, cores: Sequence[int], proc: Path) -> None:
    for task in (proc / str(pid) / "task").glob("*"):
        try:
            os.sched_setaffinity(int(task.name), cores)
        except OSError:  # the thread has ended, or belongs to another user
            continue
