"""The gateway's own cost of an event stays small."""

from __future__ import annotations

from tests.app.sse_rate import rate


def test_events_per_second_of_a_core() -> None:
    """At least 20 000 events a CPU second, of the better of two runs: other programs share the caches."""
    assert max(rate(streams=8, events=1500) for _ in range(2)) >= 20_000
