"""Time on the critical path, from made-up events."""

from __future__ import annotations

import pytest

from benchmarks.engine.critical_path import Event, path_table, shares


def test_what_one_kernel_waits_for_another_counts_once() -> None:
    # The second starts while the first runs, waits for it and works for 2 us.
    found = shares([Event("norm", 0.0, 10.0), Event("attend", 3.0, 12.0)])
    assert found["norm"].critical_us == 10.0
    assert found["attend"].critical_us == 2.0
    assert found["attend"].duration_us == 9.0
    assert found["attend"].gap_us == 0.0


def test_kernels_one_after_another_count_whole_and_the_gap_between_them_apart() -> None:
    found = shares([Event("a", 5.0, 8.0), Event("b", 9.5, 12.0), Event("a", 12.0, 13.0)])
    assert (found["a"].count, found["a"].critical_us, found["a"].gap_us) == (2, 4.0, 0.0)
    assert (found["b"].count, found["b"].critical_us, found["b"].gap_us) == (1, 2.5, 1.5)


def test_a_kernel_that_runs_within_another_adds_nothing() -> None:
    found = shares([Event("short", 4.0, 6.0), Event("long", 0.0, 10.0), Event("next", 11.0, 12.0)])
    assert (found["long"].critical_us, found["short"].critical_us) == (10.0, 0.0)
    assert found["next"].gap_us == 1.0


@pytest.mark.parametrize("overlap", [0.0, 0.5, 4.0])
def test_shares_and_gaps_of_a_chain_add_up_to_its_span(overlap: float) -> None:
    events, end = [], 7.0
    for i in range(20):
        events.append(Event(f"k{i % 3}", end - overlap, end - overlap + 5.0))
        end = events[-1].end + (1.0 if i % 4 == 0 else 0.0)
    found = shares(reversed(events))
    total = sum(share.critical_us + share.gap_us for share in found.values())
    assert total == pytest.approx(events[-1].end - events[0].start)


def test_the_table_has_the_longest_first() -> None:
    row = {"count": 26.0, "critical_us": 1.0, "gap_us": 0.5, "duration_us": 9.0}
    lines = path_table("raw", {"small": row, "large": {**row, "gap_us": 7.0}}, count=1).splitlines()
    assert lines[0].startswith("raw: 9.5 us a replay")
    assert [line.split()[-1] for line in lines[1:]] == ["large"]
