"""vLLM's adaptive verification on the GPU: answers as ever, and counts of what was verified."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.gpu.answers import Prompts, differing, ids
from tests.gpu.conftest import BATCHES, gpu_engine
from tests.reference.fixtures import NEW_TOKENS
from tests.reference.greedy import GreedyReference

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("family", ["dflash", "dspark"])
def test_what_was_not_verified_is_in_no_count(
    verifier: Path,
    reference: GreedyReference,
    prompts: Prompts,
    fitted: Callable[[str], Path],
    family: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where every verified token costs as much as the last, most drafts of a batch of 32 are left out, more of those
    that are unlikely. vLLM's own budgets say how many tokens were verified.
    """
    from tests.engine.harness import Job

    asked, budgets = prompts[: sum(BATCHES)], [0]
    with gpu_engine(verifier, fitted(family), mode="graphs", enable_adaptive_verification=True) as running:
        manager: Any = running.runner.adaptive_verification
        assert manager is not None
        assert differing(ids(running, asked), reference, asked) == [], "at the costs that were measured"

        draft_ms, verify_ms = manager.cost_tables
        manager.cost_tables = np.full_like(draft_ms, 8.0), np.arange(len(verify_ms), dtype=np.float64) + 1.0
        stock = manager.get_num_tokens

        def get_num_tokens(tokens: dict[str, int], drafts: dict[str, list[int]]) -> int:
            total: int = stock(tokens, drafts)
            budgets[0] += manager._batch_budget[2]
            return total

        monkeypatch.setattr(manager, "get_num_tokens", get_num_tokens)
        before = running.counters
        answers = running.run([Job(prompt, NEW_TOKENS, ignore_eos=True) for prompt in asked[:32]])
        counters, steps = running.counters - before, list(running.steps)
        got = [list(answer.tokens) for answer in answers]
        assert differing(got, reference, asked[:32]) == []

        lengths = {k for step in steps for k in step.drafts}
        assert len(lengths) > 2, f"requests of one step verify different numbers of tokens: {sorted(lengths)}"
        assert counters.draft_tokens == sum(k * n for step in steps for k, (n, _) in step.drafts.items())
        assert counters.accepted_tokens == sum(sum(a) for step in steps for _, a in step.drafts.values())
        assert counters.draft_tokens < 0.8 * 7 * counters.drafts, "drafts were left out"
        # A step that was scheduled before a request's end is known verifies for it once more, counted nowhere.
        assert budgets[0] - 32 * 2 * 7 <= counters.draft_tokens <= budgets[0]
        assert {k for step in steps for k in step.drafted} == {7}

        running.core.set_draft_length(0)
        assert differing(ids(running, asked), reference, asked) == []
