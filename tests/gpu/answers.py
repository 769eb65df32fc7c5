"""What the GPU tests ask engines, and what transformers and the drafts' formulas say to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.conftest import BATCHES
from tests.reference.fixtures import NEW_TOKENS
from tests.reference.greedy import GreedyReference

Prompts = Sequence[tuple[int, ...]]

COUNTED = 0.01
"""How far float32 counters may be from the reference's: a draft's own near ties fall either way."""


def in_batches(running: Any, prompts: Prompts, **extra: Any) -> list[Any]:
    """The answer to every prompt, greedy, in batches of 1, 2, 3, 4 and 32; `extra` are sampling parameters."""
    from tests.engine.harness import Job

    found: list[Any] = []
    for batch in BATCHES:
        part = prompts[len(found) : len(found) + batch]
        found += running.run([Job(prompt, NEW_TOKENS, ignore_eos=True, extra=extra) for prompt in part])
    return found


def ids(running: Any, prompts: Prompts) -> list[list[int]]:
    """The tokens of `in_batches`."""
    return [list(answer.tokens) for answer in in_batches(running, prompts)]


def differing(got: list[list[int]], reference: GreedyReference, prompts: Prompts) -> list[int]:
    """Which of the answers are not transformers'."""
    return [
        i
        for i, (prompt, tokens) in enumerate(zip(prompts, got, strict=True))
        if tokens != list(reference.answer(prompt, NEW_TOKENS, ignore_eos=True).tokens)
    ]


def check_accepted(
    counters: Any, draft: Path, verifier: Path, reference: GreedyReference, prompts: Prompts, k: int
) -> None:
    """The draft was right as often, position by position, as its formulas are over the same answers.

    A fitted draft is right at about a third of its first positions and, since a block is accepted from the left, at a
    sixth of seven: how often is the draft's matter, and the formulas' to say.
    """
    from tests.engine.blocks import BlockReference

    blocks = BlockReference(draft, verifier, reference)
    runs: list[int] = []
    for prompt in prompts:
        answer = reference.answer(prompt, NEW_TOKENS + k, ignore_eos=True).tokens
        runs += blocks.accepted(prompt, answer, NEW_TOKENS, k)
    assert counters.drafts == pytest.approx(len(runs), rel=COUNTED)
    for position in range(k):
        want = sum(run > position for run in runs)
        got = counters.accepted_per_position[position]
        assert got == pytest.approx(want, rel=COUNTED, abs=3), f"position {position + 1}"
    assert sum(runs) > 0.1 * k * len(runs), "a fitted draft is often right"


def check_joins(
    running: Any, reference: GreedyReference, prompts: Prompts, lengths: Sequence[int] = ()
) -> None:
    """All prompts, four joining every third step and some aborted after nine: those that remain are transformers'.

    `lengths` are draft lengths, one a step, over and over.
    """
    from tests.engine.harness import Job

    jobs = [
        Job(prompt, NEW_TOKENS, join_at=3 * (i // 4), ignore_eos=True, abort_after=9 if i % 7 == 3 else None)
        for i, prompt in enumerate(prompts)
    ]
    got = running.run(jobs, lengths=lengths)
    kept = [i for i, job in enumerate(jobs) if job.abort_after is None]
    assert differing([list(got[i].tokens) for i in kept], reference, [prompts[i] for i in kept]) == []
