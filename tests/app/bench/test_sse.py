"""Event parsing: whatever the portions, the same events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.bench.sse import EventParser

lines = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), min_size=1)


@given(st.lists(lines), st.lists(st.integers(1, 9)), st.sampled_from(["\n", "\r\n"]))
def test_portions_do_not_matter(events: list[str], sizes: list[int], end: str) -> None:
    wire = "".join(f": ping{end}{end}id: 1{end}data: {event}{end}{end}" for event in events).encode()
    parser, found, at = EventParser(), [], 0
    for size in [*sizes, len(wire)]:
        found += parser.feed(wire[at : at + size])
        at += size
    assert found == events


@pytest.mark.parametrize(
    ("wire", "events"),
    [
        (b"data: a\ndata: b\n\n", ["a\nb"]),
        (b"data:a\n\ndata:  b\n\n", ["a", " b"]),
        (b"\n\n: comment\n\n", []),
        (b"event: x\ndata: a\n\ndata: unfinished\n", ["a"]),
    ],
)
def test_forms(wire: bytes, events: list[str]) -> None:
    assert EventParser().feed(wire) == events
