"""Running requests of one prompt share its cross pages: counted, right for every one of them, and free at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from vllm import SamplingParams

from plugin.verifier.config import ENCODER_CACHE_MANAGER
from tests.engine.harness import InProcessEngine, Job, engine
from tests.reference.greedy import GreedyReference
from tests.reference.prompts import prompt_ids

pytestmark = pytest.mark.engine

BLOCK = 32
LONG = prompt_ids(300, 41)
CROSS_BLOCKS = -(-300 // BLOCK)
SAMPLES = 8
ROOM: dict[str, Any] = {"max_num_seqs": SAMPLES, "block_size": BLOCK}


@contextmanager
def sharing(
    verifier: Path, cache_bytes: int = 1 << 20, draft: Path | None = None, **extra: Any
) -> Iterator[tuple[InProcessEngine, list[int]]]:
    """An engine, and the blocks in use after each step was scheduled."""
    manager = {
        "encoder_cache_manager_cls": ENCODER_CACHE_MANAGER,
        "manager_config": {"cache_bytes": cache_bytes, "busy_step_tokens": 1024},
    }
    with engine(verifier, draft, 3 if draft else None, ec_manager_config=manager, **(ROOM | extra)) as made:
        used: list[int] = []
        scheduler = made.core.scheduler
        schedule, pool = scheduler.schedule, scheduler.kv_cache_manager.block_pool

        def counting(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            used.append(pool.num_gpu_blocks - 1 - pool.get_num_free_blocks())
            return output

        scheduler.schedule = counting
        yield made, used
        assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
        assert all(block.ref_cnt == 0 for block in pool.blocks if not block.is_null)


def samples(running: InProcessEngine) -> tuple[list[list[int]], torch.Tensor]:
    """The tokens of eight sampled answers to the long prompt, and their log-probabilities."""
    params = SamplingParams(temperature=1.0, seed=3, n=SAMPLES, max_tokens=20, ignore_eos=True, logprobs=0)
    running.llm.add_request("samples", {"prompt_token_ids": list(LONG)}, params)
    last: dict[int, Any] = {}
    while running.llm.has_unfinished_requests():
        for output in running.llm.step():
            last |= {one.index: one for one in output.outputs}
    answers = [last[i] for i in range(SAMPLES)]
    tokens = [list(one.token_ids) for one in answers]
    logprobs = [
        step[token].logprob
        for one in answers
        for step, token in zip(one.logprobs or (), one.token_ids, strict=True)
    ]
    return tokens, torch.tensor(logprobs)


def cross_cache(running: InProcessEngine, name: str) -> torch.Tensor:
    """What the last layer has in a request's cross pages, copied."""
    scheduler = running.core.scheduler
    (group,) = (
        i
        for i, group in enumerate(scheduler.kv_cache_config.kv_cache_groups)
        if any(layer.endswith("cross_cache") for layer in group.layer_names)
    )
    blocks = scheduler.kv_cache_manager.get_block_ids(name)[group]
    cache: torch.Tensor = running.runner.model.model.layers[-1].self_attn.attn.cross_cache.kv_cache
    return cache[blocks].clone()


def test_samples_of_a_request_have_the_pages_of_one(verifier: Path) -> None:
    """And say the same as with pages of their own, which they have where no cache is wanted."""
    with sharing(verifier) as (running, used):
        shared = samples(running)
        assert used[0] == CROSS_BLOCKS + SAMPLES
        assert [len(step.scheduled_encoder_inputs) for step in running.scheduled][:2] == [1, 0]
        counts = running.encoder
        assert (counts.misses, counts.hits) == (1, SAMPLES - 1)
        assert counts.tokens_saved == (SAMPLES - 1) * len(LONG)
    with sharing(verifier, cache_bytes=0) as (running, used):
        apart = samples(running)
        assert used[0] == SAMPLES * CROSS_BLOCKS + SAMPLES
    assert shared[0] == apart[0]
    assert len({tuple(tokens) for tokens in shared[0]}) > 1
    torch.testing.assert_close(shared[1], apart[1], atol=1e-5, rtol=0)


def test_who_joins_changes_nothing_for_who_runs(verifier: Path, reference: GreedyReference) -> None:
    """Pages stay as they are to the last bit while others join, one of another prompt in the very step; and they are
    what the joining ones read.
    """
    with sharing(verifier) as (running, used):
        seen: list[torch.Tensor] = []
        step = running.llm.step

        def watching() -> Any:
            outputs = step()
            names = [request.request_id for request in running.core.scheduler.running]
            if names:
                seen.append(cross_cache(running, names[0]))
            return outputs

        other = prompt_ids(33, 7)
        jobs = [Job(LONG, 40, ignore_eos=True)]
        jobs += [Job(prompt, 20, ignore_eos=True, join_at=8) for prompt in (LONG, other, LONG)]
        with mock.patch.object(running.llm, "step", watching):
            answers = running.run(jobs)
        for answer, job in zip(answers, jobs, strict=True):
            assert answer.tokens == reference.answer(job.prompt, job.max_tokens, ignore_eos=True).tokens
        joined = [set(step.scheduled_encoder_inputs) for step in running.scheduled][8:10]
        assert sum(map(len, joined)) == 1
        assert max(used) <= CROSS_BLOCKS + 2 + 2 + 3
        assert len(seen) > 30 and all(torch.equal(pages, seen[-1]) for pages in seen[2:])

        # A holder whose pages are broken breaks who shares them.
        def breaking() -> Any:
            outputs = step()
            if len(running.scheduled) == 3:
                for layer in running.runner.model.model.layers:
                    layer.self_attn.attn.cross_cache.kv_cache.zero_()
            return outputs

        with mock.patch.object(running.llm, "step", breaking):
            broken = running.run([Job(LONG, 40, ignore_eos=True), Job(LONG, 20, ignore_eos=True, join_at=8)])
        assert broken[1].tokens != answers[1].tokens


@pytest.mark.parametrize("family", [None, "dflash"])
def test_holders_that_end_are_aborted_and_come_back(
    verifier: Path, reference: GreedyReference, random_draft: Callable[[str], Path], family: str | None
) -> None:
    """Whoever wrote the pages is the first to go, by its end or by an abort; and under preemption, with room for the
    pages of two and a half prompts, all eight answer as they do alone.
    """
    draft = random_draft(family) if family else None
    with sharing(verifier, draft=draft) as (running, _):
        jobs = [Job(LONG, 6, ignore_eos=True), Job(LONG, 40, ignore_eos=True, join_at=2)]
        jobs += [Job(LONG, 60, ignore_eos=True, join_at=3, abort_after=12)]
        jobs += [Job(LONG, 50, ignore_eos=True, join_at=9 + 8 * i) for i in range(3)]
        answers = running.run(jobs)
        assert sum(len(step.scheduled_encoder_inputs) for step in running.scheduled) == 1
        for i in (0, 1, 3, 4, 5):
            want = reference.answer(LONG, jobs[i].max_tokens, ignore_eos=True).tokens
            assert answers[i].tokens == want

    prompts = [prompt_ids(120 + 9 * (i % 3), 500 + i % 3) for i in range(SAMPLES)]
    tight = {"max_model_len": 224, "max_encoder_len": 160, "max_num_batched_tokens": 224}
    blocks = 1 + 2 * (5 + -(-(101 + 7) // BLOCK)) + 3
    with sharing(verifier, draft=draft, **tight, num_gpu_blocks_override=blocks) as (running, used):
        before = running.counters
        answers = running.run([Job(prompt, 100, ignore_eos=True) for prompt in prompts])
        assert (running.counters - before).preemptions > 0
        assert max(used) <= blocks - 1
        for answer, prompt in zip(answers, prompts, strict=True):
            assert answer.tokens == reference.answer(prompt, 100, ignore_eos=True).tokens


def test_more_requests_of_a_prompt_fit_than_with_pages_of_their_own(
    verifier: Path, reference: GreedyReference
) -> None:
    """Pages for two prompts and the answers of eight: without a preemption where they are shared, else with some."""
    limits = {"max_model_len": 64, "num_gpu_blocks_override": 1 + 2 * CROSS_BLOCKS + SAMPLES * 2}
    jobs = [Job(LONG, 40, ignore_eos=True)] * SAMPLES
    together: dict[int, int] = {}
    for cache_bytes in (1 << 20, 0):
        with sharing(verifier, cache_bytes, **limits) as (running, _):
            answers = running.run(jobs)
            together[cache_bytes] = max(len(step.num_scheduled_tokens) for step in running.scheduled)
            for answer in answers:
                assert answer.tokens == reference.answer(LONG, 40, ignore_eos=True).tokens
    assert together == {1 << 20: SAMPLES, 0: 3}
