"""On the GPU, too, answers do not depend on what the encoder's cache holds, nor on how a long prompt was encoded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from plugin.verifier.config import ENCODER_CACHE_MANAGER
from tests.gpu.answers import Prompts, differing
from tests.gpu.conftest import Mode, gpu_engine
from tests.reference.fixtures import NEW_TOKENS
from tests.reference.greedy import GreedyReference

pytestmark = pytest.mark.gpu

TOKEN_BYTES = 64 * 4
"""Of the tiny verifier: hidden size 64, float32."""
CACHES = {"off": 0, "on": 1 << 24, "evicting": TOKEN_BYTES * 500}


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
    """20 prompts five times: ids are transformers', logprobs within 1e-5 and accepted tokens the same."""
    asked = [*prompts[:20]] * 5
    draft = fitted(family) if family else None
    found: dict[str, tuple[list[Any], Any]] = {}
    for name, cache_bytes in CACHES.items():
        with gpu_engine(
            verifier, draft, mode=mode, ec_manager_config=manager(cache_bytes=cache_bytes)
        ) as running:
            before = running.counters
            got = answers_of(running, asked, 3)
            counts = running.encoder
            held = running.runner.encoder_cache.encoder_outputs
            if name == "on":
                assert (counts.misses, counts.hits, len(held)) == (20, 80, 20)
                assert counts.bytes_held == sum(s.untyped_storage().nbytes() for s in held.values())
                key, states = next(iter(held.items()))
                held[key] = states.flip(1)
                assert differing(
                    [list(a.tokens) for a in answers_of(running, asked[:1], 0)], reference, asked[:1]
                )
            else:
                assert counts.misses > 20
                assert counts.bytes_held <= cache_bytes
            found[name] = got, running.counters - before
        assert differing([list(answer.tokens) for answer in got], reference, asked) == []
    (want, counters), *others = found.values()
    for got, _ in others:
        for one, other in zip(got, want, strict=True):
            for token, a, b in zip(one.tokens, one.logprobs, other.logprobs, strict=True):
                assert a[token].logprob == pytest.approx(b[token].logprob, abs=1e-5)
    if draft:
        evicting = found["evicting"][1]
        assert evicting.accepted_tokens == pytest.approx(counters.accepted_tokens, rel=0.01)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_long_prompts_in_parts(
    verifier: Path,
    reference: GreedyReference,
    prompts: Prompts,
    dtype: str,
) -> None:
    """Prompts of many tiles beside running requests, FlashAttention and the float32 kernel over a tile's queries."""
    from tests.engine.harness import Job

    long = sorted(prompts, key=len)[-4:]
    jobs = [Job(prompts[0], 160, ignore_eos=True)]
    jobs += [
        Job(prompt, NEW_TOKENS, join_at=4 + 3 * i, ignore_eos=True, extra={"logprobs": 1})
        for i, prompt in enumerate(long)
    ]
    wanted = None
    for tokens in (0, 40):
        config = manager(cache_bytes=0, **({"busy_step_tokens": tokens} if tokens else {}))
        with gpu_engine(verifier, dtype=dtype, ec_manager_config=config) as running:
            got = running.run(jobs)[1:]
            parts = [step.ec_manager_metadata for step in running.scheduled]
            assert (len([part for part in parts if part and part.key]) > 12) == bool(tokens)
        if dtype == "float32":
            assert differing([list(answer.tokens) for answer in got], reference, long) == []
        first = torch.tensor([[next(iter(step.values())).logprob for step in a.logprobs[:1]] for a in got])
        if wanted is not None:
            torch.testing.assert_close(first, wanted, atol=1e-5 if dtype == "float32" else 0.1, rtol=0)
        wanted = first
