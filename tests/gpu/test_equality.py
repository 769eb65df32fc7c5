"""On the GPU the ids are transformers' own in float32; in bfloat16 a first difference is a near tie.

One engine a family, K and mode, with all batch sizes inside it. The drafts are fitted: what they accept, position by
position, must be what the formulas accept, or the draft is served differently from how it was trained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from plugin.drafts.families import FAMILIES
from tests.gpu.conftest import BATCHES, Mode, gpu_engine
from tests.reference.fixtures import NEW_TOKENS
from tests.reference.greedy import GreedyReference

pytestmark = pytest.mark.gpu
Prompts = list[tuple[int, ...]]

COUNTED = 0.01
"""How far float32 counters may be from the reference's: a draft's own near ties fall either way."""


def answers(running: Any, prompts: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Greedy ids of every prompt, in batches of 1, 2, 3, 4 and 32."""
    from tests.engine.harness import Job

    found: list[list[int]] = []
    for batch in BATCHES:
        jobs = [Job(p, NEW_TOKENS, ignore_eos=True) for p in prompts[len(found) : len(found) + batch]]
        found += [list(answer.tokens) for answer in running.run(jobs)]
    return found


def differing(got: list[list[int]], reference: GreedyReference, prompts: Prompts) -> list[int]:
    """Which of the answers are not transformers'."""
    return [
        i
        for i, (prompt, ids) in enumerate(zip(prompts, got, strict=False))
        if ids != list(reference.answer(prompt, NEW_TOKENS, ignore_eos=True).tokens)
    ]


def expected_runs(
    draft: Path, verifier: Path, reference: GreedyReference, prompts: Prompts, k: int
) -> list[int]:
    """Accepted tokens of every block that must be drafted for `prompts`."""
    from tests.engine.blocks import BlockReference

    blocks = BlockReference(draft, verifier, reference)
    runs: list[int] = []
    for prompt in prompts:
        answer = reference.answer(prompt, NEW_TOKENS + k, ignore_eos=True).tokens
        runs += blocks.accepted(prompt, answer, NEW_TOKENS, k)
    return runs


@pytest.mark.parametrize("mode", ["eager", "graphs"])
@pytest.mark.parametrize(("family", "k"), [(None, 0), *((f, k) for f in FAMILIES for k in (1, 3, 7))])
def test_float32_equals_transformers(
    verifier: Path,
    reference: GreedyReference,
    prompts: Prompts,
    fitted: Callable[[str], Path],
    family: str | None,
    k: int,
    mode: Mode,
) -> None:
    """B01, C11 (GPU parts): with any family, K and batch size, eager or as graphs; and the drafts' own acceptance."""
    draft = fitted(family) if family else None
    asked = prompts[: sum(BATCHES)]
    with gpu_engine(verifier, draft, k, mode=mode) as running:
        got = answers(running, asked)
        counters = running.counters
    assert differing(got, reference, asked) == []
    if draft is None:
        return
    runs = expected_runs(draft, verifier, reference, asked, k)
    assert counters.drafts == pytest.approx(len(runs), rel=COUNTED)
    for position in range(k):
        want = sum(run > position for run in runs)
        got_here = counters.accepted_per_position[position]
        assert got_here == pytest.approx(want, rel=COUNTED, abs=3), f"position {position + 1}"
    assert counters.acceptance > 0.2, "a fitted draft is often right"


@pytest.mark.parametrize("family", [None, *FAMILIES])
def test_compiled_equals_transformers(
    verifier: Path,
    reference: GreedyReference,
    prompts: Prompts,
    fitted: Callable[[str], Path],
    family: str | None,
) -> None:
    """As users run it: torch.compile and full decode graphs, at K = 7."""
    asked = prompts[: sum(BATCHES)]
    with gpu_engine(verifier, fitted(family) if family else None, mode="compiled") as running:
        got = answers(running, asked)
        acceptance = running.counters.acceptance if family else 1.0
    assert differing(got, reference, asked) == []
    assert acceptance > 0.2


@pytest.mark.parametrize("mode", ["eager", "graphs"])
def test_joining_leaving_and_preemption(
    verifier: Path, reference: GreedyReference, prompts: Prompts, fitted: Callable[[str], Path], mode: Mode
) -> None:
    """B26, C09 on the GPU: slots change hands, and a cache for a few requests makes others wait and start again."""
    from tests.engine.harness import Job

    jobs = [
        Job(prompt, NEW_TOKENS, join_at=3 * (i // 4), ignore_eos=True, abort_after=9 if i % 7 == 3 else None)
        for i, prompt in enumerate(prompts)
    ]
    blocks = 1 + sum(-(-len(prompt) // 16) + 4 for prompt in sorted(prompts, key=len)[-3:])
    with gpu_engine(
        verifier, fitted("dflash"), mode=mode, max_num_seqs=8, block_size=16, num_gpu_blocks_override=blocks
    ) as running:
        got = running.run(jobs)
        preemptions = running.counters.preemptions
    kept = [i for i, job in enumerate(jobs) if job.abort_after is None]
    assert differing([list(got[i].tokens) for i in kept], reference, [prompts[i] for i in kept]) == []
    assert preemptions > 0


@pytest.mark.parametrize("mode", ["eager", "graphs"])
@pytest.mark.parametrize("family", [None, *FAMILIES])
def test_bfloat16_differs_at_near_ties_only(
    verifier: Path,
    reference: GreedyReference,
    prompts: Prompts,
    fitted: Callable[[str], Path],
    family: str | None,
    mode: Mode,
) -> None:
    """B01: the top-2 gap of the float32 run where a bfloat16 run first differs is below 0.1."""
    asked = prompts[: sum(BATCHES)]
    with gpu_engine(verifier, fitted(family) if family else None, dtype="bfloat16", mode=mode) as running:
        got = answers(running, asked)
    first_differences, wide = 0, []
    for i, (prompt, ids) in enumerate(zip(asked, got, strict=True)):
        want = reference.answer(prompt, NEW_TOKENS, ignore_eos=True)
        first = next((j for j, (a, b) in enumerate(zip(ids, want.tokens, strict=True)) if a != b), None)
        if first is not None:
            first_differences += 1
            if want.gaps[first] >= 0.1:
                wide.append((i, first, want.gaps[first]))
    print(
        f"bfloat16 {family or 'raw'} {mode}: {first_differences} of {len(asked)} differ, {len(wide)} not at near ties"
    )
    assert not wide, wide


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_b32_draft_weights_of_another_type(
    verifier: Path,
    reference: GreedyReference,
    prompts: Prompts,
    fitted: Callable[[str], Path],
    tmp_path: Path,
    dtype: str,
) -> None:
    """B32: a draft stored in another type is cast to the bfloat16 verifier's; acceptance within 0.02."""
    import shutil

    import torch
    from safetensors.torch import load_file, save_file

    def acceptance(draft: Path) -> float:
        with gpu_engine(verifier, draft, dtype="bfloat16") as running:
            answers(running, prompts[: sum(BATCHES)])
            return float(running.counters.acceptance)

    draft = fitted("dflash")
    cast = shutil.copytree(draft, tmp_path / dtype)
    tensors = load_file(draft / "model.safetensors")
    wanted = getattr(torch, dtype)
    save_file(
        {name: t.to(wanted) if t.is_floating_point() else t for name, t in tensors.items()},
        cast / "model.safetensors",
    )
    assert acceptance(cast) == pytest.approx(acceptance(draft), abs=0.02)
