"""Little room: small caches, small budgets, the end of the context. Nothing hangs, nothing changes its answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.blocks import BlockReference
from tests.engine.harness import Answer, InProcessEngine, Job, engine
from tests.reference.greedy import GreedyReference
from tests.reference.prompts import prompt_ids

pytestmark = pytest.mark.engine

K = 7
BLOCK = 32
LONG = [prompt_ids(100 + 7 * i, 300 + i) for i in range(8)]
LONG_TOKENS = 200
BLOCKS_OF_ONE = -(-(100 + 7 * 7) // BLOCK) + -(-(1 + LONG_TOKENS + K) // BLOCK)
"""KV blocks that the longest of `LONG` fills at its end: cross blocks and self blocks come from one pool."""
TIGHT: dict[str, Any] = {
    "max_num_seqs": 8,
    "block_size": BLOCK,
    "max_model_len": 224,
    "max_encoder_len": 160,
    "max_num_batched_tokens": 224,
}


def check_long(running: InProcessEngine, reference: GreedyReference, count: int) -> list[Answer]:
    """`count` long requests at once: every answer as alone, with preemptions on the way, in bounded time."""
    jobs = [Job(prompt, LONG_TOKENS, ignore_eos=True) for prompt in LONG[:count]]
    before = running.counters
    answers = running.run(jobs)
    steps = len(running.scheduled)
    assert (running.counters - before).preemptions > 0
    for answer, prompt in zip(answers, LONG, strict=False):
        assert answer.tokens == reference.answer(prompt, LONG_TOKENS, ignore_eos=True).tokens
        assert answer.finish_reason == "length"
    assert steps < 10 * count * LONG_TOKENS
    return answers


def test_c09_cache_for_one_and_a_half(verifier: Path, reference: GreedyReference) -> None:
    """Self and cross blocks together hold 1.5 of 6 concurrent requests (C09)."""
    with engine(verifier, **TIGHT, num_gpu_blocks_override=1 + BLOCKS_OF_ONE * 3 // 2) as running:
        check_long(running, reference, 6)


def test_b26_preemption_with_a_draft(
    verifier: Path, reference: GreedyReference, random_draft: Callable[[str], Path]
) -> None:
    """A cache for about two of 8 concurrent requests, K = 7; a resumed request has its own encoder states (B26)."""
    draft = random_draft("dflash")
    with engine(verifier, draft, K, **TIGHT, num_gpu_blocks_override=1 + BLOCKS_OF_ONE * 2) as running:
        answers = check_long(running, reference, 8)
        assert BlockReference(draft, verifier, reference).wrong(running.blocks, LONG, answers) == []


def test_n29_the_cache_holds_a_full_batch_and_no_more(
    verifier: Path, reference: GreedyReference, random_draft: Callable[[str], Path]
) -> None:
    """N29: without a size, and a share of memory that holds thousands of requests, eight of full length run without a
    preemption, in a cache that two such batches would fill.
    """
    limits = {**TIGHT, "gpu_memory_utilization": 0.3, "kv_cache_memory_bytes": None}
    with engine(verifier, random_draft("dflash"), K, **limits) as running:
        blocks = running.core.scheduler.kv_cache_config.num_blocks
        of_one = -(-TIGHT["max_encoder_len"] // BLOCK) + -(-(TIGHT["max_model_len"] + K) // BLOCK)
        assert 8 * of_one < blocks <= 16 * of_one
        before = running.counters
        answers = running.run([Job(prompt, LONG_TOKENS, ignore_eos=True) for prompt in LONG])
        assert (running.counters - before).preemptions == 0
        for answer, prompt in zip(answers, LONG, strict=True):
            assert answer.tokens == reference.answer(prompt, LONG_TOKENS, ignore_eos=True).tokens


def test_c09_cache_smaller_than_one_request_is_refused(verifier: Path) -> None:
    """The start fails and names the needed and the available size; nothing waits for ever later (C09)."""
    with (
        pytest.raises(ValueError, match=r"(?s)GiB.*needed.*GiB"),
        engine(verifier, max_model_len=1024, max_encoder_len=1024, kv_cache_memory_bytes=4 << 20),
    ):
        pass


def test_c07_encoder_budget(
    verifier: Path, reference: GreedyReference, random_draft: Callable[[str], Path]
) -> None:
    """Encoders of 0.6 times the budget; 8 requests, and 8 more after 50 steps (C07)."""
    budget = 256
    prompts = [prompt_ids(154, 600 + i) for i in range(8)]
    jobs = [Job(p, 100, ignore_eos=True, join_at=start) for start in (0, 50) for p in prompts]
    with engine(
        verifier,
        random_draft("dflash"),
        K,
        max_num_seqs=16,
        max_encoder_len=budget,
        max_num_batched_tokens=budget,
    ) as running:
        answers = running.run(jobs)
        for answer, job in zip(answers, jobs, strict=True):
            assert answer.tokens == reference.answer(job.prompt, 100, ignore_eos=True).tokens
        passes: dict[str, int] = {}
        for step in running.scheduled:
            encoded = [name for name, inputs in step.scheduled_encoder_inputs.items() if inputs]
            assert 154 * len(encoded) <= budget
            for name in encoded:
                passes[name] = passes.get(name, 0) + 1
        assert sorted(passes.values()) == [1] * 16
        assert running.core.scheduler.encoder_cache_manager.counts.bytes_held == 0
        assert running.runner.encoder_cache == {}


def test_b15_end_of_the_context(
    verifier: Path, reference: GreedyReference, random_draft: Callable[[str], Path]
) -> None:
    """64 decoder positions, K = 7, 55 to 63 new tokens one by one, then four at once (B15)."""
    prompts = [prompt_ids(20 + i, 800 + i) for i in range(4)]
    with engine(verifier, random_draft("dflash"), K, max_model_len=64) as running:
        before = running.counters
        for limit in range(55, 64):
            (answer,) = running.run([Job(prompts[0], limit, ignore_eos=True)])
            assert answer.tokens == reference.answer(prompts[0], limit, ignore_eos=True).tokens
            assert answer.finish_reason == "length"
        answers = running.run([Job(p, 63, ignore_eos=True) for p in prompts])
        for answer, prompt in zip(answers, prompts, strict=True):
            assert answer.tokens == reference.answer(prompt, 63, ignore_eos=True).tokens
        counters = running.counters - before
        assert counters.draft_tokens <= counters.drafts * K
