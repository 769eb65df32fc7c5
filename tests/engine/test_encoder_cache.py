"""No prompt is encoded twice, and no prompt in one go beside others: both without a change of any answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import plugin
from plugin.verifier import processing
from plugin.verifier.config import ENCODER_CACHE_MANAGER
from plugin.verifier.encoder.work import PassCosts
from tests.engine.harness import Answer, InProcessEngine, Job, engine
from tests.reference.greedy import GreedyReference
from tests.reference.prompts import prompt_ids

pytestmark = pytest.mark.engine

DEMO = Path(plugin.__file__).parent / "demo"
PROMPTS = [prompt_ids(20 + 9 * i, 40 + i) for i in range(20)]
NEW_TOKENS = 8
TOKEN_BYTES = 64 * 4
"""Of the tiny verifier: hidden size 64, float32."""


@contextmanager
def cached(
    verifier: Path, cache_bytes: int, draft: Path | None = None, k: int | None = None, **extra: Any
) -> Iterator[tuple[InProcessEngine, list[list[int]]]]:
    """An engine with a cache, and the lengths of the prompts of each run of its encoder."""
    step = {} if (busy := extra.pop("busy_step_tokens", None)) is None else {"busy_step_tokens": busy}
    manager = {
        "encoder_cache_manager_cls": ENCODER_CACHE_MANAGER,
        "manager_config": {"cache_bytes": cache_bytes, **step},
    }
    with engine(verifier, draft, k, ec_manager_config=manager, **extra) as running:
        runs: list[list[int]] = []
        encode = running.runner.model.embed_multimodal

        def recording(**given: Any) -> Any:
            runs.append([len(prompt) for prompt in given["text"]])
            return encode(**given)

        running.runner.model.embed_multimodal = recording
        yield running, runs


def jobs_of(prompts: list[tuple[int, ...]], spread: int = 1, **fields: Any) -> list[Job]:
    return [
        Job(prompt, NEW_TOKENS, join_at=i // 4 * spread, ignore_eos=True, extra={"logprobs": 2}, **fields)
        for i, prompt in enumerate(prompts)
    ]


def check_equal(answers: list[Answer], wanted: list[Answer]) -> None:
    for got, want in zip(answers, wanted, strict=True):
        assert got.tokens == want.tokens
        torch.testing.assert_close(
            torch.tensor(got.chosen_logprobs), torch.tensor(want.chosen_logprobs), atol=1e-5, rtol=0
        )


def test_equal_prompts_are_encoded_once(
    verifier: Path, reference: GreedyReference, random_draft: Any
) -> None:
    """100 requests with 20 prompts, and 12 samples of another; the cache off, on, and always full."""
    everyone = PROMPTS * 5
    draft = random_draft("dflash")
    room = {"max_num_seqs": 8, "max_encoder_len": 256}
    with cached(verifier, 0, draft, 3, **room) as (running, runs):
        before = running.counters
        wanted = running.run(jobs_of(everyone))
        drafted = running.counters - before
        assert sum(map(len, runs)) > len(everyone) // 2
        assert running.runner.encoder_cache == {}
    for answer, prompt in zip(wanted, everyone, strict=True):
        assert answer.tokens == reference.answer(prompt, NEW_TOKENS, ignore_eos=True).tokens

    with cached(verifier, 1 << 20, draft, 3, **room) as (running, runs):
        before = running.counters
        check_equal(running.run(jobs_of(everyone)), wanted)
        assert sorted(length for run in runs for length in run) == sorted(map(len, PROMPTS))
        counts = running.encoder
        assert (counts.misses, counts.hits) == (20, 80)
        assert counts.tokens_saved == 4 * counts.tokens_encoded == 4 * sum(map(len, PROMPTS))
        held = running.runner.encoder_cache
        assert counts.bytes_held == sum(s.untyped_storage().nbytes() for s in held.values())
        assert counts.bytes_held == TOKEN_BYTES * counts.tokens_encoded
        assert (running.counters - before).accepted_per_position == drafted.accepted_per_position
        assert (running.counters - before).drafts == drafted.drafts

        runs.clear()
        new = prompt_ids(33, 5)
        running.run([Job(new, NEW_TOKENS, temperature=1.0, extra={"n": 12})])  # 8 of them have room at once
        assert runs == [[33]]
        # Held states that are another prompt's change the answers: the cache is really read.
        key = processing.prompt_identity(PROMPTS[0])
        held[key] = held[key].flip(1)
        wrong = running.run(jobs_of(PROMPTS[:2]))
        with pytest.raises(AssertionError):
            check_equal(wrong, wanted[:2])
        check_equal(wrong[1:], wanted[1:2])

    few = TOKEN_BYTES * 400  # three or four prompts
    with cached(verifier, few, draft, 3, **room) as (running, runs):
        check_equal(running.run(jobs_of(everyone)), wanted)
        counts = running.encoder
        assert counts.misses + counts.hits == 100
        assert counts.misses == sum(map(len, runs)) > 20
        assert counts.bytes_held <= few
        held_bytes = sum(s.untyped_storage().nbytes() for s in running.runner.encoder_cache.values())
        assert held_bytes <= few + TOKEN_BYTES * 2 * 200


def test_preempted_and_aborted_requests(verifier: Path, reference: GreedyReference) -> None:
    """Little room for pages and states: whoever comes back has its own states; what was aborted leaves nothing."""
    prompts = [prompt_ids(100 + 7 * i, 300 + i) for i in range(6)] * 2
    room = {"max_num_seqs": 8, "block_size": 32, "max_model_len": 224, "max_encoder_len": 160}
    room |= {"max_num_batched_tokens": 224, "num_gpu_blocks_override": 1 + 12 * 2, "busy_step_tokens": 64}
    with cached(verifier, TOKEN_BYTES * 300, **room) as (running, _):
        jobs = [Job(prompt, 100, ignore_eos=True) for prompt in prompts]
        jobs[3] = Job(prompts[3], 100, ignore_eos=True, join_at=2, abort_after=1)
        before = running.counters
        answers = running.run(jobs)
        assert (running.counters - before).preemptions > 0
        for i, (answer, prompt) in enumerate(zip(answers, prompts, strict=True)):
            if i != 3:
                assert answer.tokens == reference.answer(prompt, 100, ignore_eos=True).tokens


def test_long_prompts_in_parts(verifier: Path, reference: GreedyReference) -> None:
    """Beside running requests a prompt beyond the step's bound is encoded over several steps, and no step does more;
    aborted half way, it is forgotten.
    """
    long = [prompt_ids(300 - i, 70 + i) for i in range(3)]
    short = prompt_ids(12, 1)
    with cached(verifier, 0, busy_step_tokens=60) as (running, runs):
        jobs = [Job(short, 120, ignore_eos=True)]
        jobs += [Job(prompt, 30, ignore_eos=True, join_at=5 + 2 * i) for i, prompt in enumerate(long)]
        jobs.append(Job(prompt_ids(310, 9), 30, join_at=3, abort_after=2))
        answers = running.run(jobs)
        for answer, job in zip(answers[:4], jobs, strict=False):
            assert answer.tokens == reference.answer(job.prompt, job.max_tokens, ignore_eos=True).tokens
        assert answers[4].tokens == ()
        assert runs == [[12]]
        parts = [one for step in running.scheduled if (one := step.ec_manager_metadata) and one.key]
        assert len(parts) > 3 * 300 // 60
        config = running.config.model_config.hf_config
        costs = PassCosts(config.encoder.text_config, config.decoder, 60)
        length = 0
        for part in parts:
            length = length if part.prompt is None else len(part.prompt)
            assert costs.rows(length, part.first_row, part.num_rows) <= 60
        assert running.runner.encoder_cache == {}
        assert running.runner._t5gemma2_states._pass is None


def test_a_hit_costs_less_than_half_of_a_miss() -> None:
    """CPU seconds of a first token after 512 prompt tokens, on the demo; held loosely."""
    room = {"max_model_len": 64, "max_encoder_len": 512}
    with cached(DEMO / "verifier", 1 << 24, **room) as (running, runs):
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for seed in range(6):
            for held in seconds:
                began = time.process_time()
                running.run([Job(prompt_ids(512, seed), 1)])
                seconds[held].append(time.process_time() - began)
        assert runs == [[512]] * 6
    assert min(seconds[True]) < 0.6 * min(seconds[False])
