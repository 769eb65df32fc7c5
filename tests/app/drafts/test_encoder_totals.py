"""Sums of several engines, and what is forgotten with them."""

from __future__ import annotations

from app.drafts.encoder_totals import EncoderTotals
from plugin.encoder_counts import EncoderCounts


def test_what_an_engine_holds_goes_with_it() -> None:
    """Its sequences, too: no count of running ones stays behind when another draft's engine takes its place."""
    totals = EncoderTotals()
    totals.record(0, EncoderCounts(hits=1, misses=2, bytes_held=30, requests=4))
    totals.record(1, EncoderCounts(hits=10, misses=20, bytes_held=300, requests=40))
    totals.record(0, EncoderCounts(hits=2, bytes_held=50, requests=1))
    assert (totals.hits, totals.misses, totals.bytes_held, totals.requests) == (13, 22, 350, 41)
    totals.forget_held()
    assert (totals.hits, totals.misses, totals.bytes_held, totals.requests) == (13, 22, 0, 0)
