"""On the GPU, too, answers do not depend on what the encoder's cache holds, nor on how a long prompt was encoded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from plugin.verifier.config import ENCODER_CACHE_MANAGER
from plugin.verifier.encoder import capture, pass_graphs
from tests.gpu.answers import Prompts, differing
from tests.gpu.conftest import Mode, gpu_engine
from tests.reference.fixtures import NEW_TOKENS
from tests.reference.greedy import GreedyReference

pytestmark = pytest.mark.gpu

TOKEN_BYTES = 64 * 4
"""Of the tiny verifier: hidden size 64, float32."""
CACHES = {"off": 0, "on": 1 << 24, "evicting": TOKEN_BYTES * 500}

APART = NEW_TOKENS // 5 + 1
"""Steps between the waves of four: five waves later, when a prompt comes again, nobody runs who could share his."""


def manager(**given: int) -> dict[str, Any]:
    return {"encoder_cache_manager_cls": ENCODER_CACHE_MANAGER, "manager_config": given}


def answers_of(running: Any, prompts: Prompts, spread: int) -> list[Any]:
    from tests.engine.harness import Job

    extra = {"logprobs": 1}
    return running.run(
        [
            Job(prompt, NEW_TOKENS, join_at=spread * (i // 4), ignore_eos=True, extra=extra)
            for i, prompt in enumerate(prompts)
        ]
    )


def _logprobs(answers: list[Any]) -> torch.Tensor:
    """Of each answer's own tokens `[num_tokens]`, one answer after another."""
    return torch.tensor([one for answer in answers for one in answer.chosen_logprobs], dtype=torch.float64)


@pytest.mark.parametrize("mode", ["eager", "graphs"])
@pytest.mark.parametrize("family", [None, "dflash"])
def test_cache_off_on_and_evicting(
    reference: GreedyReference,
    verifier: Path,
    prompts: Prompts,
    fitted: Callable[[str], Path],
    family: str | None,
    mode: Mode,
) -> None:
    """20 prompts five times: ids are transformers', logprobs within 1e-5 and accepted tokens the same; bit-equal where
    no request runs beside those of another wave, so that the same kernels see the same shapes.
    """
    asked = [*prompts[:20]] * 5
    draft = fitted(family) if family else None
    found: dict[str, tuple[list[Any], Any]] = {}
    alone: list[list[Any]] = []
    for name, cache_bytes in CACHES.items():
        with gpu_engine(
            verifier, draft, mode=mode, ec_manager_config=manager(cache_bytes=cache_bytes)
        ) as running:
            before = running.counters
            got = answers_of(running, asked, APART)
            counts = running.encoder
            held = running.runner.encoder_cache.encoder_outputs
            if name == "on":
                assert (counts.misses, counts.hits, len(held)) == (20, 80, 20)
                assert counts.bytes_held == sum(s.untyped_storage().nbytes() for s in held.values())
            else:
                assert counts.misses > 20
                assert counts.bytes_held <= cache_bytes
            found[name] = got, running.counters - before
            alone.append(answers_of(running, asked[:8] * 2, NEW_TOKENS + 16))
            if name == "on":
                key, states = next(iter(held.items()))
                held[key] = states.flip(1)
                wrong = [list(answer.tokens) for answer in answers_of(running, asked[:1], 0)]
                assert differing(wrong, reference, asked[:1])
        assert differing([list(answer.tokens) for answer in got], reference, asked) == []
    (want, counters), *others = found.values()
    for got, _ in others:
        torch.testing.assert_close(_logprobs(got), _logprobs(want), atol=1e-5, rtol=1e-5)
    for got in alone[1:]:
        assert torch.equal(_logprobs(got), _logprobs(alone[0]))
    if draft:
        evicting = found["evicting"][1]
        assert evicting.accepted_tokens == pytest.approx(counters.accepted_tokens, rel=0.01)


PART_ROWS = 64
"""Of stages that are captured in parts: below the prompts' lengths, and no divisor of them."""
SMALL_GRAPHS = {
    "mode": 0,
    "cudagraph_mode": "FULL_DECODE_ONLY",
    "encoder_cudagraph_token_budgets": [16, PART_ROWS],
    "encoder_cudagraph_max_vision_items_per_batch": 4,
}


@pytest.mark.parametrize(("mode", "in_parts"), [("eager", False), ("graphs", False), ("graphs", True)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_long_prompts_in_parts(
    verifier: Path,
    reference: GreedyReference,
    prompts: Prompts,
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    mode: Mode,
    in_parts: bool,
) -> None:
    """Prompts of many parts beside running requests: FlashAttention and the float32 kernel over a part's queries, and
    stages that are captured, whole and in parts themselves.
    """
    from tests.engine.harness import Job

    long = sorted(prompts, key=len)[-4:]
    jobs = [Job(prompts[0], 160, ignore_eos=True)]
    jobs += [
        Job(prompt, NEW_TOKENS, join_at=4 + 3 * i, ignore_eos=True, extra={"logprobs": 1})
        for i, prompt in enumerate(long)
    ]
    assert all(len(prompt) > PART_ROWS and len(prompt) % PART_ROWS for prompt in long)
    more: dict[str, Any] = {}
    if in_parts:
        more["compilation_config"] = SMALL_GRAPHS
        for module in (capture, pass_graphs):
            monkeypatch.setattr(module, "PART_ROWS", PART_ROWS)
    wanted = None
    for tokens in (0, 40):
        config = manager(cache_bytes=0, **({"busy_step_tokens": tokens} if tokens else {}))
        with gpu_engine(verifier, dtype=dtype, mode=mode, ec_manager_config=config, **more) as running:
            made = running.runner.model_state._pass_graphs
            assert (made is not None) == bool(tokens and mode == "graphs")
            if made is not None:
                assert (made._sizes.part(len(long[-1])) == PART_ROWS) == in_parts
            got = running.run(jobs)[1:]
            parts = [step.ec_manager_metadata for step in running.scheduled]
            assert (len([part for part in parts if part and part.key]) > 12) == bool(tokens)
        if dtype == "float32":
            assert differing([list(answer.tokens) for answer in got], reference, long) == []
        first = torch.tensor([[next(iter(step.values())).logprob for step in a.logprobs[:1]] for a in got])
        if wanted is not None:
            torch.testing.assert_close(first, wanted, atol=1e-5 if dtype == "float32" else 0.1, rtol=0)
        wanted = first


@pytest.mark.parametrize(("family", "mode"), [(None, "eager"), ("dflash", "graphs")])
def test_running_requests_of_a_prompt_share_its_pages(
    reference: GreedyReference,
    verifier: Path,
    prompts: Prompts,
    fitted: Callable[[str], Path],
    family: str | None,
    mode: Mode,
) -> None:
    """Eight of one prompt and one of another: some in the same step, one joins when the writer has ended."""
    from tests.engine.harness import Job

    long, other = sorted(prompts, key=len)[-2:]
    jobs = [Job(long, 6 if i == 0 else NEW_TOKENS, ignore_eos=True) for i in range(5)]
    jobs += [Job(other, NEW_TOKENS, join_at=3, ignore_eos=True)]
    jobs += [Job(long, NEW_TOKENS, join_at=at, ignore_eos=True) for at in (3, 10)]
    draft = fitted(family) if family else None
    config = manager(cache_bytes=1 << 24)
    with gpu_engine(verifier, draft, mode=mode, ec_manager_config=config) as running:
        pool = running.core.scheduler.kv_cache_manager.block_pool
        got = running.run(jobs)
        assert sum(len(step.scheduled_encoder_inputs) for step in running.scheduled) == 2
        assert running.encoder.hits == len(jobs) - 2
        assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
    for answer, job in zip(got, jobs, strict=True):
        want = reference.answer(job.prompt, job.max_tokens, ignore_eos=True).tokens
        assert list(answer.tokens) == list(want)
