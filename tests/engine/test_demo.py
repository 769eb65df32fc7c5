"""The bundled demo in the engine: the comparisons made on the tiny random checkpoint, and the promised acceptance."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from transformers import AutoTokenizer

import plugin
from plugin.training.data.problems.generate import PUBLISHED_QUESTIONS, generate
from tests.engine.blocks import BlockReference, Served
from tests.engine.harness import InProcessEngine, Job, engine
from tests.engine.test_greedy import Prompts, staggered, wrong
from tests.reference.fixtures import NEW_TOKENS
from tests.reference.greedy import GreedyReference

pytestmark = pytest.mark.engine

DEMO = Path(plugin.__file__).parent / "demo"
PAIRS = [("dflash", 1), ("dflash", 3), ("dflash", 7), ("dspark", 7), ("dflare", 7)]
ACCEPTANCE = {1: 0.8, 3: 0.78, 7: 0.5}
"""Accepted over drafted: at K = 3 a mean length of 3.34, where a block as short as K had 2.6."""
SEED = 20_001


@pytest.fixture(scope="module")
def demo() -> GreedyReference:
    """transformers' greedy answers for the demo verifier."""
    return GreedyReference(DEMO / "verifier")


@pytest.fixture(scope="module")
def questions() -> Prompts:
    """40 questions that nothing was trained on, the published one first."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "verifier")
    fresh = islice(generate(SEED, "fresh"), 40 - len(PUBLISHED_QUESTIONS))
    texts = [*sorted(PUBLISHED_QUESTIONS), *(problem.question for problem in fresh)]
    return [tuple(tokenizer(text).input_ids) for text in texts]


@pytest.fixture(scope="module")
def mixed(questions: Prompts, demo: GreedyReference) -> Prompts:
    """50 prompts: the questions, and beginnings and repetitions of some, below, at and above the window."""
    window = demo.model.config.decoder.sliding_window
    long = questions[1] + questions[2][1:] + questions[3][1:] + questions[4][1:]
    lengths = (
        1,
        2,
        window // 2,
        window - 1,
        window,
        window + 1,
        2 * window,
        2 * window + 1,
        4 * window,
        len(long),
    )
    return questions + [long[:length] for length in lengths]


@pytest.fixture(scope="module")
def crowded() -> Iterator[InProcessEngine]:
    """No draft, sixteen slots, and a cache that holds about five of them."""
    room = {
        "max_model_len": 96,
        "max_num_batched_tokens": 320,
        "block_size": 32,
        "num_gpu_blocks_override": 26,
    }
    with engine(DEMO / "verifier", max_num_seqs=16, **room) as running:
        yield running


def test_alone(crowded: InProcessEngine, demo: GreedyReference, mixed: Prompts) -> None:
    answers = [crowded.run([Job(prompt, NEW_TOKENS)])[0] for prompt in mixed]
    assert wrong(answers, demo, mixed) == []


def test_joining_leaving_and_preempted(
    crowded: InProcessEngine, demo: GreedyReference, mixed: Prompts
) -> None:
    before = crowded.counters
    answers = crowded.run(staggered(mixed))[: len(mixed)]
    assert wrong(answers, demo, mixed) == []
    assert (crowded.counters - before).preemptions > 0


@pytest.fixture(scope="module", params=PAIRS, ids=lambda pair: f"{pair[0]}-k{pair[1]}")
def served(request: pytest.FixtureRequest, demo: GreedyReference) -> Iterator[Served]:
    """Each bundled draft."""
    name, k = request.param
    with engine(DEMO / "verifier", DEMO / name, k) as running:
        yield Served(running, name, k, BlockReference(DEMO / name, DEMO / "verifier", demo))


def test_b01_with_a_draft(served: Served, demo: GreedyReference, mixed: Prompts) -> None:
    """Greedy ids as without a draft (B01), and each drafted block as the formulas give it."""
    answers = served.engine.run(staggered(mixed))[: len(mixed)]
    assert wrong(answers, demo, mixed) == []
    mine = [block for block in served.engine.blocks if block.request < len(mixed)]
    assert served.blocks.wrong(mine, mixed, answers) == []


def test_acceptance_on_fresh_questions(served: Served, demo: GreedyReference, questions: Prompts) -> None:
    """More than half of the trained block, K = 7, and more of its beginnings: later positions are harder."""
    before = served.engine.counters
    answers = [served.engine.run([Job(prompt, NEW_TOKENS)])[0] for prompt in questions]
    assert wrong(answers, demo, questions) == []
    assert (served.engine.counters - before).acceptance > ACCEPTANCE[served.k]
