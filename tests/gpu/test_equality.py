"""On the GPU the ids are transformers' own in float32; in bfloat16 a first difference is a near tie.

One engine a family, K and graph mode, with all batch sizes inside it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.conftest import BATCHES, NEW_TOKENS, gpu_engine
from tests.reference.greedy import GreedyReference

pytestmark = pytest.mark.gpu
FAMILIES = ("dflash", "dspark", "dflare")


def answers(llm: Any, prompts: list[tuple[int, ...]]) -> list[list[int]]:
    """Greedy ids of every prompt, in batches of 1, 2, 3, 4 and 32."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
    found: list[list[int]] = []
    for batch in BATCHES:
        ids = [{"prompt_token_ids": list(p)} for p in prompts[len(found) : len(found) + batch]]
        found += [list(o.outputs[0].token_ids) for o in llm.generate(ids, params, use_tqdm=False)]
    return found


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize(("family", "k"), [(None, 0), *((f, k) for f in FAMILIES for k in (1, 3, 7))])
def test_float32_equals_transformers(
    verifier: Path,
    reference: GreedyReference,
    prompts: list[tuple[int, ...]],
    draft: Callable[[str], Path],
    family: str | None,
    k: int,
    graphs: bool,
) -> None:
    """B01, C11 (GPU parts): with any family, K and batch size, eager or as graphs."""
    with gpu_engine(verifier, draft(family) if family else None, k, graphs=graphs) as llm:
        got = answers(llm, prompts)
    wrong = [
        i
        for i, (prompt, ids) in enumerate(zip(prompts, got, strict=True))
        if ids != list(reference.answer(prompt, NEW_TOKENS, ignore_eos=True).tokens)
    ]
    assert not wrong, f"{len(wrong)} of {len(prompts)} prompts differ: {wrong[:10]}"


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize("family", [None, *FAMILIES])
def test_bfloat16_differs_at_near_ties_only(
    verifier: Path,
    reference: GreedyReference,
    prompts: list[tuple[int, ...]],
    draft: Callable[[str], Path],
    family: str | None,
    graphs: bool,
    record_property: Callable[[str, object], None],
) -> None:
    """B01: the top-2 gap of the float32 run where a bfloat16 run first differs is below 0.1."""
    with gpu_engine(verifier, draft(family) if family else None, dtype="bfloat16", graphs=graphs) as llm:
        got = answers(llm, prompts)
    differing, wide = 0, []
    for i, (prompt, ids) in enumerate(zip(prompts, got, strict=True)):
        want = reference.answer(prompt, NEW_TOKENS, ignore_eos=True)
        first = next((j for j, (a, b) in enumerate(zip(ids, want.tokens, strict=True)) if a != b), None)
        if first is not None:
            differing += 1
            if want.gaps[first] >= 0.1:
                wide.append((i, first, want.gaps[first]))
    record_property("first differences", differing)
    print(f"bfloat16 {family or 'raw'}: {differing} of {len(prompts)} differ, {len(wide)} not at near ties")
    assert not wide, wide
