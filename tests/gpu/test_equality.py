"""On the GPU the ids are transformers' own in float32, and drafts are accepted as their formulas say.

One engine a family, K and mode, with all batch sizes inside it. The drafts are fitted: what they accept, position by
position, must be what the formulas accept, or the draft is served differently from how it was trained.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from plugin.drafts.families import FAMILIES
from tests.gpu.answers import Prompts, check_accepted, check_joins, differing, ids
from tests.gpu.conftest import BATCHES, Mode, cache_for, gpu_engine
from tests.reference.greedy import GreedyReference

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("family", [None, *FAMILIES])
def test_compiled_equals_transformers(
    verifier: Path,
    reference: GreedyReference,
    prompts: Prompts,
    fitted: Callable[[str], Path],
    family: str | None,
) -> None:
    """As users run it: torch.compile and full decode graphs, at K = 7; then with requests that join and leave while
    others have drafts to verify.
    """
    draft = fitted(family) if family else None
    asked = prompts[: sum(BATCHES)]
    with gpu_engine(verifier, draft, mode="compiled") as running:
        got = ids(running, asked)
        counters = running.counters
        check_joins(running, reference, prompts)
    assert differing(got, reference, asked) == []
    if draft:
        check_accepted(counters, draft, verifier, reference, asked, 7)


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
    """With any family, K and batch size, eager or as graphs; and the drafts' own acceptance (B01, C11)."""
    draft = fitted(family) if family else None
    asked = prompts[: sum(BATCHES)]
    with gpu_engine(verifier, draft, k, mode=mode) as running:
        got = ids(running, asked)
        counters = running.counters
    assert differing(got, reference, asked) == []
    if draft:
        check_accepted(counters, draft, verifier, reference, asked, k)


@pytest.mark.parametrize("mode", ["eager", "graphs"])
def test_joining_leaving_and_preemption(
    verifier: Path, reference: GreedyReference, prompts: Prompts, fitted: Callable[[str], Path], mode: Mode
) -> None:
    """Slots change hands, and a cache for one full request makes others wait and start again (B26, C09)."""
    with (
        cache_for(1),
        gpu_engine(
            verifier,
            fitted("dflash"),
            mode=mode,
            max_num_seqs=8,
            block_size=16,
            max_model_len=64,
            max_num_batched_tokens=320,
        ) as running,
    ):
        check_joins(running, reference, prompts)
        preemptions = running.counters.preemptions
    assert preemptions > 0
