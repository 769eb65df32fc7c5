"""Arms on cores of their own: one logical core for each physical one, every thread of every process of an arm."""

import os
import subprocess
import sys
import threading

import pytest

from benchmarks.engine import cores
from benchmarks.engine.cores import Cores, choose, descendants, pin


def topology(folder, siblings):
    for core, names in siblings.items():
        (folder / f"cpu{core}" / "topology").mkdir(parents=True)
        (folder / f"cpu{core}" / "topology" / "thread_siblings_list").write_text(names + "\n")
    return folder


def test_an_arm_has_physical_cores_and_their_siblings_stay_empty(tmp_path):
    pairs = {core: f"{core % 6},{core % 6 + 6}" for core in range(12)}
    assert choose(range(12), topology(tmp_path, pairs)) == Cores((2, 3), (4, 5), (0, 6, 1, 7))


def test_without_a_topology_every_core_counts(tmp_path):
    assert choose({3, 1, 9, 7, 5}, tmp_path) == Cores((3, 5), (7, 9), (1,))
    assert choose({3, 1, 9, 7}, tmp_path) is None


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux has affinities")
def test_every_thread_of_a_process_and_of_its_children_is_held():
    """On one core for the front end and another for the child, where there are two."""
    allowed = sorted(os.sched_getaffinity(0))
    wait = "import sys, threading; threading.Thread(target=sys.stdin.read).start(); print('up', flush=True)"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {wait!r}])"
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "up\n"
        (child,) = descendants(process.pid)
        pin(process.pid, Cores((allowed[0],), (allowed[-1],), ()))
        for pid, core in ((process.pid, allowed[0]), (child, allowed[-1])):
            threads = os.listdir(f"/proc/{pid}/task")
            assert {frozenset(os.sched_getaffinity(int(thread))) for thread in threads} == {frozenset({core})}
        assert len(os.listdir(f"/proc/{child}/task")) == 2
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()
    pin(process.pid, Cores((allowed[0],), (allowed[0],), ()))  # it has ended: nothing to hold


def test_the_measuring_process_leaves_the_arms_cores(monkeypatch):
    held = {}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    monkeypatch.setattr(
        os, "sched_setaffinity", lambda pid, to: held.__setitem__(pid, tuple(to)), raising=False
    )
    monkeypatch.setattr(cores, "choose", lambda _: Cores((2,), (3,), (0, 1)))
    assert cores.pin_all([os.getpid()]) == Cores((2,), (3,), (0, 1))
    assert held[0] == (0, 1)
    assert held[threading.get_native_id()] == (2,)
    monkeypatch.setattr(cores, "choose", lambda _: None)
    assert cores.pin_all([1]) is None
