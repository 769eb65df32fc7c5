"""Where a request ends: the same with a draft as without, though a block may reach beyond the end.

All requests run once in an engine without a draft and once with a fitted draft at K = 7; the tests compare the pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from tests.engine.harness import Answer, Block, Counters, Job, engine
from tests.reference.fixtures import NEW_TOKENS
from tests.reference.greedy import GreedyReference
from tests.reference.tiny import tiny_tokenizer

pytestmark = pytest.mark.engine

K = 7
Prompt = tuple[int, ...]


@dataclass(frozen=True)
class Run:
    """One request in one engine. `generated`: the engine's own count of its tokens, for jobs run alone."""

    answer: Answer
    blocks: tuple[Block, ...]
    generated: int | None = None


@dataclass(frozen=True)
class Stop:
    """A stop in a greedy answer: it is first complete with token number `at` (1 = the first)."""

    prompt: Prompt
    at: int
    text: str
    token: int


class Pairs:
    """`without[job]` and `drafted[job]` for every one of `jobs`, of which those in `alone` run alone."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.alone: set[int] = set()
        self.without: list[Run] = []
        self.drafted: list[Run] = []

    def add(self, job: Job) -> int:
        self.jobs.append(job)
        return len(self.jobs) - 1

    def run(self, draft: Path | None, verifier: Path) -> list[Run]:
        """All jobs in one engine."""
        runs: dict[int, Run] = {}
        with engine(verifier, draft, K) as running:
            for i in self.alone:
                before: Counters = running.counters
                (answer,) = running.run([self.jobs[i]])
                generated = (running.counters - before).generated_tokens
                runs[i] = Run(answer, tuple(running.blocks), generated)
            rest = [i for i in range(len(self.jobs)) if i not in self.alone]
            answers = running.run([self.jobs[i] for i in rest])
            for row, (i, answer) in enumerate(zip(rest, answers, strict=True)):
                runs[i] = Run(answer, tuple(block for block in running.blocks if block.request == row))
        return [runs[i] for i in range(len(self.jobs))]

    def of(self, index: int) -> tuple[Run, Run]:
        """The pair of a job; both must agree in all that a client sees."""
        without, drafted = self.without[index], self.drafted[index]
        assert drafted.answer.text == without.answer.text
        assert drafted.answer.finish_reason == without.answer.finish_reason
        assert drafted.answer.tokens == without.answer.tokens
        return without, drafted


def pieces(tokenizer: PreTrainedTokenizerBase, tokens: tuple[int, ...]) -> list[str]:
    return [tokenizer.decode([token], skip_special_tokens=True) for token in tokens]


def stops(reference: GreedyReference, prompts: list[Prompt], width: int) -> list[Stop]:
    """Stops of `width` tokens that are plain ASCII and occur nowhere earlier in their answer."""
    tokenizer = tiny_tokenizer()
    found = []
    for prompt in prompts:
        tokens = reference.answer(prompt, NEW_TOKENS).tokens
        parts = pieces(tokenizer, tokens)
        for at in range(8, len(tokens) - 8):
            parts_here = parts[at - width : at]
            text, whole = "".join(parts_here), tokenizer.decode(tokens[:at], skip_special_tokens=True)
            if all(p.isascii() and p.isprintable() and p for p in parts_here) and whole.find(text) == len(
                whole
            ) - len(text):
                found.append(Stop(prompt, at, text, tokens[at - 1]))
    return found


@pytest.fixture(scope="module")
def plan(reference: GreedyReference, prompts: list[Prompt]) -> dict[str, Any]:
    """The jobs of all tests, by test."""
    pairs = Pairs()
    single, double = stops(reference, prompts, 1), stops(reference, prompts, 2)
    tenth = next(stop for stop in single if stop.at == 10)
    limits = [pairs.add(Job(tenth.prompt, limit, extra={"stop": [tenth.text]})) for limit in (10, 11, 12, 13)]
    ending = [p for p in prompts if 8 < len(reference.answer(p, NEW_TOKENS).tokens) < NEW_TOKENS]
    eos = [(len(reference.answer(p, NEW_TOKENS).tokens), extra) for p in ending[:4] for extra in range(4)]
    eos_jobs = [
        pairs.add(Job(p, len(reference.answer(p, NEW_TOKENS).tokens) + extra))
        for p in ending[:4]
        for extra in range(4)
    ]
    texts = [
        pairs.add(Job(s.prompt, NEW_TOKENS, extra={"stop": [s.text]})) for s in single[::25] + double[::12]
    ]
    ids = [pairs.add(Job(s.prompt, NEW_TOKENS, extra={"stop_token_ids": [s.token]})) for s in single[::40]]
    natural = [pairs.add(Job(p, NEW_TOKENS)) for p in ending]
    pairs.alone.update(natural)
    penalties = {"frequency_penalty": 1.5, "presence_penalty": 1.0, "repetition_penalty": 1.3}
    repetitive = sorted(prompts, key=lambda p: len(set(reference.answer(p, 48, ignore_eos=True).tokens)))[:6]
    penalised = [
        (
            p,
            [pairs.add(Job(p, 48, ignore_eos=True, extra={k: v})) for k, v in penalties.items()]
            + [pairs.add(Job(p, 48, ignore_eos=True, extra=penalties))],
        )
        for p in repetitive
    ]
    return {
        "pairs": pairs, "limits": limits, "eos": list(zip(eos, eos_jobs, strict=True)), "texts": texts, "ids": ids,
        "stops": single[::25] + double[::12], "id_stops": single[::40], "natural": natural, "penalised": penalised,
    }  # fmt: skip


@pytest.fixture(scope="module")
def pairs(plan: dict[str, Any], verifier: Path, fitted: Callable[[str], Path]) -> Pairs:
    """All jobs, run."""
    both: Pairs = plan["pairs"]
    both.without = both.run(None, verifier)
    both.drafted = both.run(fitted("dflash"), verifier)
    return both


@pytest.mark.parametrize("extra", range(4))
def test_b12_stop_string_at_the_limit(pairs: Pairs, plan: dict[str, Any], extra: int) -> None:
    """The stop is complete with token 10; max_tokens 10 to 13 (B12)."""
    without, _ = pairs.of(plan["limits"][extra])
    assert without.answer.finish_reason == "stop"


def test_b12_eos_at_the_limit(pairs: Pairs, plan: dict[str, Any]) -> None:
    """The end token is token n; max_tokens n to n + 3 (B12)."""
    for (length, _), job in plan["eos"]:
        without, _ = pairs.of(job)
        assert without.answer.finish_reason == "stop"
        assert len(without.answer.tokens) == length


def test_b13_stop_strings(pairs: Pairs, plan: dict[str, Any]) -> None:
    """Stops of one token and of two, these inside one block and across two (B13)."""
    inside = across = 0
    for stop, job in zip(plan["stops"], plan["texts"], strict=True):
        without, drafted = pairs.of(job)
        assert without.answer.finish_reason == "stop"
        assert stop.text not in without.answer.text
        assert len(drafted.answer.tokens) == stop.at
        starts = {block.position for block in drafted.blocks}  # a step ends where a block is drafted
        if len(stop.text) > 1:
            across += stop.at - 1 in starts
            inside += stop.at - 1 not in starts
    assert inside > 0 and across > 0


def test_b13_generation_ends_at_the_step_of_the_stop(pairs: Pairs, plan: dict[str, Any]) -> None:
    """Nothing is drafted or verified after the step that completed the stop (B13)."""
    for stop, job in zip(plan["stops"], plan["texts"], strict=True):
        blocks = pairs.drafted[job].blocks
        assert all(block.position < stop.at for block in blocks[:-1])


def test_b13_stop_token_ids(pairs: Pairs, plan: dict[str, Any]) -> None:
    """A stop token id ends the answer where the verifier alone first says it (B13)."""
    for stop, job in zip(plan["id_stops"], plan["ids"], strict=True):
        without, _ = pairs.of(job)
        assert without.answer.finish_reason == "stop"
        assert without.answer.tokens[-1] == stop.token and stop.token not in without.answer.tokens[:-1]


def test_b36_eos_inside_a_block(pairs: Pairs, plan: dict[str, Any]) -> None:
    """Usage and the engine's own counter agree, also where the end token came in the middle of a block (B36)."""
    inside = 0
    for job in plan["natural"]:
        without, drafted = pairs.of(job)
        assert without.generated == drafted.generated == len(without.answer.tokens)
        inside += drafted.blocks[-1].position > len(drafted.answer.tokens)
    assert inside > 0


def test_b10_penalties(pairs: Pairs, plan: dict[str, Any], reference: GreedyReference) -> None:
    """Penalties count the tokens of the block before; the text is that without a draft (B10)."""
    for prompt, jobs in plan["penalised"]:
        free = reference.answer(prompt, 48, ignore_eos=True).tokens
        for job in jobs:
            without, _ = pairs.of(job)
            assert without.answer.tokens != free
