"""K while the engine runs: whole blocks at every K, no answer changed, and after K = 0 acceptance as before it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from plugin.drafts.checkpoint import DEMO
from plugin.drafts.families import FAMILIES
from plugin.drafts.v1_proposer import BlockProposer
from plugin.training.data.problems.generate import generate
from plugin.vllm_hooks.adaptive_verification import VERIFIED
from tests.engine.blocks import BlockReference, Served
from tests.engine.harness import Answer, Block, InProcessEngine, Job, engine
from tests.engine.test_greedy import Prompts, staggered, wrong
from tests.engine.test_pressure import BLOCKS_OF_ONE, LONG, LONG_TOKENS, TIGHT
from tests.reference.fixtures import NEW_TOKENS
from tests.reference.greedy import GreedyReference
from tests.reference.prompts import prompt_ids

pytestmark = pytest.mark.engine

BLOCK = 7
CYCLE = (7, 0, 3, 1)
SEED = 31_007


@pytest.fixture(scope="module")
def demo() -> GreedyReference:
    return GreedyReference(DEMO / "verifier")


@pytest.fixture(scope="module")
def questions() -> Prompts:
    """Questions that nothing was trained on."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "verifier")
    return [tuple(tokenizer(problem.question).input_ids) for problem in islice(generate(SEED, "fresh"), 14)]


@pytest.fixture(scope="module", params=FAMILIES)
def served(request: pytest.FixtureRequest, demo: GreedyReference) -> Iterator[Served]:
    """Each bundled draft, started at K = 3."""
    name = request.param
    with engine(DEMO / "verifier", DEMO / name, 3) as running:
        yield Served(running, name, 3, BlockReference(DEMO / name, DEMO / "verifier", demo))


def one_at_a_time(running: InProcessEngine, prompts: Prompts) -> tuple[list[Answer], dict[Any, Block]]:
    """The answers, and the blocks by prompt and position."""
    answers: list[Answer] = []
    blocks: dict[Any, Block] = {}
    for i, prompt in enumerate(prompts):
        answers += running.run([Job(prompt, NEW_TOKENS)])
        blocks |= {(i, block.position): block for block in running.blocks}
    return answers, blocks


def test_every_k_verifies_the_beginnings_of_the_trained_block(
    served: Served, demo: GreedyReference, questions: Prompts
) -> None:
    """One at a time: the blocks of K = 1, 3, 5 are those of K = 7 cut, and accepted as these are, slot by slot."""
    some = questions[:4]
    at: dict[int, dict[Any, Block]] = {}
    for k in (3, 5, 1, BLOCK):  # 3 is how it started
        if k != 3:
            served.engine.core.set_draft_length(k)
        before = served.engine.counters
        answers, at[k] = one_at_a_time(served.engine, some)
        counters = served.engine.counters - before
        assert wrong(answers, demo, some) == []
        assert {len(block.tokens) for block in at[k].values()} == {k}
        assert counters.draft_tokens == counters.drafts * k > 0
        runs = [
            run
            for prompt, answer in zip(some, answers, strict=True)
            for run in served.blocks.accepted(
                prompt, demo.answer(prompt, NEW_TOKENS + k, ignore_eos=True).tokens, len(answer.tokens), k
            )
        ]
        assert [counters.accepted_per_position[i] for i in range(k)] == [
            sum(run > i for run in runs) for i in range(k)
        ]
    for k in (1, 3, 5):
        shared = at[k].keys() & at[BLOCK].keys()
        assert len(shared) > len(at[BLOCK]) / 4
        assert [at[k][key].tokens for key in shared] == [at[BLOCK][key].tokens[:k] for key in shared]


def test_switching_in_every_step_changes_no_answer(
    served: Served, demo: GreedyReference, questions: Prompts
) -> None:
    """Joins, aborts and ends meanwhile; every block is drafted from a whole context."""
    jobs = staggered(questions)
    answers = served.engine.run(jobs, lengths=CYCLE)[: len(questions)]
    assert wrong(answers, demo, questions) == []
    assert "stop" in {answer.finish_reason for answer in answers}
    assert {len(block.tokens) for block in served.engine.blocks} == set(CYCLE)
    mine = [block for block in served.engine.blocks if block.request < len(questions)]
    assert served.blocks.wrong(mine, questions, answers) == []
    assert {k for step in served.engine.steps for k in step.drafts} == set(CYCLE) - {0}


def late_blocks(served: Served, demo: GreedyReference, prompts: Prompts) -> tuple[int, list[str]]:
    """Eight steps at K = 0, then the whole block: how many blocks came, and which are not the reference's."""
    lines, found = [], 0
    for prompt in prompts:
        (answer,) = served.engine.run([Job(prompt, NEW_TOKENS)], lengths=[0] * 8 + [BLOCK] * 100)
        assert wrong([answer], demo, [prompt]) == []
        late = [block for block in served.engine.blocks if block.tokens]
        lines += served.blocks.wrong(late, [prompt], [answer])
        found += len(late)
    return found, lines


def test_acceptance_returns_at_once_after_no_draft(
    served: Served, demo: GreedyReference, questions: Prompts
) -> None:
    some = questions[:3]
    found, lines = late_blocks(served, demo, some)
    assert found > 3
    assert lines == []


def test_control_no_context_is_written_without_a_draft(
    served: Served, demo: GreedyReference, questions: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers stay right and the drafts are worse for good: only the blocks can tell."""
    stock = BlockProposer.build_model_inputs_first_pass

    def only_with_a_draft(self: Any, *args: Any) -> Any:
        return stock(self, *args) if self.num_speculative_tokens else None

    monkeypatch.setattr(BlockProposer, "build_model_inputs_first_pass", only_with_a_draft)
    found, lines = late_blocks(served, demo, questions[:3])
    assert len(lines) > found / 4


def test_a_grammar_and_logprobs_beside_a_changing_k(served: Served, questions: Prompts) -> None:
    jobs = [
        Job(questions[0], 12, extra={"structured_outputs": regex("[0-9]{6}")}),
        Job(questions[1], NEW_TOKENS, extra={"logprobs": 2}),
        Job(questions[2], 12, join_at=2, extra={"structured_outputs": regex("(yes|no) [a-c]+")}),
    ]
    served.engine.core.set_draft_length(0)
    plain = served.engine.run(jobs)
    switched = served.engine.run(jobs, lengths=CYCLE)
    assert [answer.tokens for answer in switched] == [answer.tokens for answer in plain]
    for answer in plain, switched:
        assert [len(step) for step in answer[1].logprobs] == [len(step) for step in plain[1].logprobs]
        assert answer[1].chosen_logprobs == pytest.approx(plain[1].chosen_logprobs, abs=1e-3)


def regex(pattern: str) -> Any:
    from vllm.sampling_params import StructuredOutputsParams

    return StructuredOutputsParams(regex=pattern)


def test_steps_say_what_was_drafted(served: Served, questions: Prompts) -> None:
    """Their sums are vLLM's counters; a duration stands only where nothing but K can explain it."""
    before = served.engine.counters
    served.engine.run([Job(prompt, NEW_TOKENS) for prompt in questions[:4]], lengths=[3] * 9 + [0] * 300)
    counters, steps = served.engine.counters - before, served.engine.steps
    assert {step.k for step in steps} == {0, 3}
    assert sum(drafts for step in steps for drafts, _ in step.drafts.values()) == counters.drafts
    for position in range(3):
        accepted = sum(step.drafts[3][1][position] for step in steps if step.drafts)
        assert accepted == counters.accepted_per_position[position]
    first, *rest = steps
    assert (first.num_requests, first.drafts, first.seconds) == (4, {}, None)
    assert all(step.seconds is None for step in steps[:2])
    switch = next(i for i, step in enumerate(steps) if step.k == 0)
    assert steps[switch].drafts and not steps[switch + 1].drafts
    assert steps[switch].seconds is None and steps[switch + 1].seconds is None
    timed = [step for step in rest if step.seconds is not None]
    assert {step.k for step in timed} == {0, 3} and len(timed) > len(steps) / 2
    assert all(step.seconds > 0 for step in timed)


@pytest.mark.parametrize("k", [-1, 8])
def test_a_length_that_the_draft_does_not_have_is_refused(served: Served, k: int) -> None:
    with pytest.raises(ValueError, match=r"0 \.\.\. 7"):
        served.engine.core.set_draft_length(k)


def test_preemption_beside_a_changing_k(
    verifier: Path, reference: GreedyReference, random_draft: Callable[[str], Path]
) -> None:
    """A cache for about two of 8 concurrent requests."""
    draft = random_draft("dflash")
    room = {**TIGHT, "num_gpu_blocks_override": 1 + BLOCKS_OF_ONE * 2}
    with engine(verifier, draft, BLOCK, **room) as running:
        before = running.counters
        answers = running.run([Job(p, LONG_TOKENS, ignore_eos=True) for p in LONG], lengths=CYCLE)
        assert (running.counters - before).preemptions > 0
        for answer, prompt in zip(answers, LONG, strict=True):
            assert answer.tokens == reference.answer(prompt, LONG_TOKENS, ignore_eos=True).tokens
        assert BlockReference(draft, verifier, reference).wrong(running.blocks, LONG, answers) == []


@pytest.mark.parametrize("short_block", [False, True])
def test_the_short_block_and_the_end_of_the_context(
    verifier: Path, reference: GreedyReference, random_draft: Callable[[str], Path], short_block: bool
) -> None:
    """vLLM's own way stays for comparison; near the end of the context no step verifies more than K."""
    prompt, draft = prompt_ids(20, 800), random_draft("dflash")
    blocks = BlockReference(draft, verifier, reference, 3 if short_block else None)
    with engine(verifier, draft, 3, short_block=short_block, max_model_len=64) as running:
        assert running.config.speculative_config.num_speculative_tokens == (3 if short_block else BLOCK)
        answers = running.run([Job(prompt, 63, ignore_eos=True)])
        assert answers[0].tokens == reference.answer(prompt, 63, ignore_eos=True).tokens
        assert running.blocks and blocks.wrong(running.blocks, [prompt], answers) == []
        assert max(k for step in running.steps for k in step.drafts) == 3
        running.core.set_draft_length(0)
        (answer,) = running.run([Job(prompt, 63, ignore_eos=True)])
        assert answer.tokens == answers[0].tokens
        assert all(step.drafts.keys() <= {3} for step in running.steps[:1])
        assert not any(step.drafts for step in running.steps[1:])


def test_drafts_that_were_not_verified_are_neither_proposed_nor_rejected(
    served: Served, demo: GreedyReference, questions: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the V2 runner's adaptive verification says it: counters, steps and each request's own figures agree."""
    scheduler, chance = served.engine.core.scheduler, random.Random(SEED)
    update, verified_tokens, figures = scheduler.update_from_output, [0], {}

    def update_from_output(step: Any, output: Any) -> Any:
        verified = {}
        for name, tokens in zip(output.req_ids, output.sampled_token_ids, strict=True):
            drafts = len(step.scheduled_spec_decode_tokens.get(name, ()))
            verified[name] = chance.randint(len(tokens) - 1, drafts) if drafts else 0
            verified_tokens[0] += verified[name]
        setattr(output, VERIFIED, verified)
        found = update(step, output)
        for outputs in found.values():
            figures.update({o.request_id: o.spec_decode_metrics for o in outputs.outputs if o.finished})
        return found

    served.engine.core.set_draft_length(BLOCK)
    with monkeypatch.context() as patched:
        patched.setattr(scheduler, "update_from_output", update_from_output)
        patched.setattr(scheduler, "spec_decode_metrics_level", "detailed")
        before, some = served.engine.counters, questions[:8]
        answers = served.engine.run([Job(prompt, NEW_TOKENS) for prompt in some])
        counters, steps = served.engine.counters - before, list(served.engine.steps)
    assert wrong(answers, demo, some) == []
    assert counters.draft_tokens == verified_tokens[0]
    assert sum(k * n for step in steps for k, (n, _) in step.drafts.items()) == counters.draft_tokens
    assert sum(sum(a) for step in steps for _, a in step.drafts.values()) == counters.accepted_tokens
    assert {k for step in steps for k in step.drafted} == {BLOCK}
    assert len({k for step in steps for k in step.drafts}) > 2
    assert sum(sum(one.per_step_drafted) for one in figures.values()) == counters.draft_tokens
    assert sum(one.num_draft_tokens for one in figures.values()) == counters.draft_tokens
