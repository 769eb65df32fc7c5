"""Fitted drafts in the engine: the text never changes, and what is drafted, accepted and counted is right.

Every family at every K; the drafts are right a third of the time, so blocks are accepted, cut and refused in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plugin.drafts.families import FAMILIES
from tests.engine.blocks import BlockReference, Served
from tests.engine.harness import Job, engine
from tests.engine.test_greedy import Prompts, staggered, wrong
from tests.reference.fixtures import NEW_TOKENS
from tests.reference.greedy import GreedyReference

pytestmark = pytest.mark.engine

KS = (1, 3, 7)


@pytest.fixture(
    scope="module", params=[(f, k) for f in FAMILIES for k in KS], ids=lambda p: f"{p[0]}-k{p[1]}"
)
def served(
    request: pytest.FixtureRequest,
    verifier: Path,
    reference: GreedyReference,
    fitted: Callable[[str], Path],
) -> Iterator[Served]:
    """Each family, fitted, at each K, with four slots."""
    name, k = request.param
    draft = fitted(name)
    with engine(verifier, draft, k, enable_prefix_caching=True) as running:
        yield Served(running, name, k, BlockReference(draft, verifier, reference))


def test_b01_batch_1(served: Served, reference: GreedyReference, prompts: Prompts) -> None:
    """Token ids as without a draft, blocks as the reference's, counters as the blocks say (B01)."""
    answers, lines = [], []
    before = served.engine.counters
    for prompt in prompts:
        answers += (answer := served.engine.run([Job(prompt, NEW_TOKENS)]))
        if served.k == max(KS):  # the other K are compared in the batch below
            lines += served.blocks.wrong(served.engine.blocks, [prompt], answer)
    counters = served.engine.counters - before
    assert wrong(answers, reference, prompts) == []
    assert lines == []
    assert counters.draft_tokens == counters.drafts * served.k
    assert sum(counters.accepted_per_position.values()) == counters.accepted_tokens
    accepted = [counters.accepted_per_position[i] for i in range(served.k)]
    assert accepted == sorted(accepted, reverse=True) and accepted[0] <= counters.drafts
    assert 0.2 < counters.acceptance < 0.9, "a fitted draft is often right and often wrong"


def test_b01_batch_4(served: Served, reference: GreedyReference, prompts: Prompts) -> None:
    """Token ids as without a draft while requests join and leave the batch (B01)."""
    jobs = staggered(prompts)
    answers = served.engine.run(jobs)
    assert wrong(answers[: len(prompts)], reference, prompts) == []
    mine = [block for block in served.engine.blocks if block.request < len(prompts)]
    assert served.blocks.wrong(mine, prompts, answers[: len(prompts)]) == []


def test_b05_b08_nothing_is_left_behind(served: Served, reference: GreedyReference, prompts: Prompts) -> None:
    """A, then B, then A twice; asking for prefix caching changes nothing, it is off (B05, B08)."""
    assert served.engine.config.cache_config.enable_prefix_caching is False
    long, short = max(prompts, key=len), prompts[2]
    assert len(long) >= 200
    runs = []
    for prompt in (long, short, long, long):
        before = served.engine.counters
        answer = served.engine.run([Job(prompt, NEW_TOKENS)])
        assert wrong(answer, reference, [prompt]) == []
        runs.append(served.engine.counters - before)
    assert runs[0] == runs[2] == runs[3]


def test_b06_acceptance_in_a_batch_is_the_solo_one(
    served: Served, reference: GreedyReference, prompts: Prompts
) -> None:
    """40 staggered requests of 8 distinct prompts in 4 slots (B06)."""
    distinct = sorted(prompts, key=len)[4:48:6][:8]
    before = served.engine.counters
    for prompt in distinct:
        served.engine.run([Job(prompt, NEW_TOKENS)])
    solo = served.engine.counters - before
    many = [distinct[i % 8] for i in range(40)]
    before = served.engine.counters
    answers = served.engine.run([Job(p, NEW_TOKENS, join_at=2 * i) for i, p in enumerate(many)])
    together = served.engine.counters - before
    assert wrong(answers, reference, many) == []
    assert together.acceptance == pytest.approx(solo.acceptance, rel=0.05)


def test_counters_are_those_of_the_formulas(
    served: Served, reference: GreedyReference, prompts: Prompts
) -> None:
    """Every block, also the last, whose tokens nobody sees: drafted, accepted, accepted by position."""
    some = prompts[::6]
    before = served.engine.counters
    served.engine.run([Job(prompt, NEW_TOKENS, ignore_eos=True) for prompt in some])
    counters = served.engine.counters - before
    runs = []
    for prompt in some:
        answer = reference.answer(prompt, NEW_TOKENS + served.k, ignore_eos=True).tokens
        runs += served.blocks.accepted(prompt, answer, NEW_TOKENS, served.k)
    assert counters.drafts == len(runs) and counters.draft_tokens == len(runs) * served.k
    assert counters.accepted_tokens == sum(runs)
    for position in range(served.k):
        assert counters.accepted_per_position[position] == sum(run > position for run in runs)
