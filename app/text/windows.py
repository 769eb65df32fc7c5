"""A long text's tokens, window by window: no call into the tokenizer takes long, and not all of a text need be read.

Why the result is the whole text's: BPE divides a text canonically if and only if it so divides each pair of neighbours.
Two overlapping windows are joined between two tokens that both have, so every pair of the joined tokens stands in a
window. A window begins where a token of the one before began, so that runs of one character divide alike in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

WINDOW = 16_384
"""Characters; tokenizing so many takes milliseconds."""
OVERLAP = 1_024
"""Characters of the next window that the last one has too; twice as many at each failure to join."""


def parts(
    text: str, encode: Callable[[str], Any], window: int = WINDOW, overlap: int = OVERLAP
) -> Iterator[list[int]]:
    """The ids of a text in order, in pieces. `encode` gives `ids` and `offsets` (pairs of characters) of a text."""
    at, found = 0, encode(text[:window])
    first, shared = 0, overlap
    while at + window < len(text):
        ids, offsets = found.ids, found.offsets
        last = window - shared
        split = next(
            (i for i in range(len(ids) - 1, 0, -1) if offsets[i][0] <= last and _clean(offsets, i - 1)), 0
        )
        if split <= first:
            # No place to join: the rest at once, slowly but rightly.
            found = encode(text[at:])
            break
        start = offsets[split][0]
        following = encode(text[at + start : at + start + window])
        joint = _joint(ids, offsets, following.ids, following.offsets, start, split)
        if joint is None:
            shared *= 2
            continue
        yield ids[first : joint[0] + 1]
        at, found, first, shared = at + start, following, joint[1] + 1, overlap
    yield found.ids[first:]


def _clean(offsets: list[tuple[int, int]], i: int) -> bool:
    """Whether tokens i and i + 1 meet between two characters, each having some."""
    (begin, end), (next_begin, next_end) = offsets[i], offsets[i + 1]
    return begin < end <= next_begin < next_end


def _joint(
    ids: list[int],
    offsets: list[tuple[int, int]],
    other_ids: list[int],
    other_offsets: list[tuple[int, int]],
    shift: int,
    split: int,
) -> tuple[int, int] | None:
    """The place (i, j) nearest to the middle where both windows have the same two tokens; `other` begins `shift`
    characters later, at token `split` of the first.
    """
    places = {begin + shift: j for j, (begin, _) in enumerate(other_offsets[: len(ids) - split]) if j}
    size = len(ids) - split
    for i in sorted(range(split, len(ids) - 1), key=lambda i: abs(2 * (i - split) - size)):
        j = places.get(offsets[i + 1][0])
        if j is None or not (_clean(offsets, i) and _clean(other_offsets, j - 1)):
            continue
        moved = [(begin + shift, end + shift) for begin, end in other_offsets[j - 1 : j + 1]]
        if ids[i : i + 2] == other_ids[j - 1 : j + 1] and offsets[i : i + 2] == moved:
            return i, j - 1
    return None
