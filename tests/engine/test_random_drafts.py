"""Random drafts in the engine: every drafted token is the one that the formulas give.

Only this, and acceptance, can show a draft that is served differently from how it was trained. Each control breaks
one thing and shows that the blocks then differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from vllm.model_executor.models.qwen3_dflash import DFlashQwen3Model

from plugin.drafts.backbone import DraftBackbone
from tests.engine.blocks import BlockReference, Served
from tests.engine.harness import Job, engine
from tests.engine.test_greedy import Prompts, staggered, wrong
from tests.reference.greedy import GreedyReference

pytestmark = pytest.mark.engine

VARIANTS = (
    "dflash",
    "dflash-3",
    "dflash-full",
    "dspark",
    "dspark-gated",
    "dspark-rnn",
    "dspark-anchor",
    "dflare",
    "dflare-3",
)


@pytest.fixture(scope="module", params=VARIANTS)
def random_served(
    request: pytest.FixtureRequest,
    verifier: Path,
    reference: GreedyReference,
    random_draft: Callable[[str], Path],
) -> Iterator[Served]:
    """Random drafts of every variant at K = 7."""
    draft = random_draft(request.param)
    with engine(verifier, draft, 7) as running:
        yield Served(running, request.param, 7, BlockReference(draft, verifier, reference))


def test_blocks(random_served: Served, reference: GreedyReference, prompts: Prompts) -> None:
    """A reduced vocabulary with its own head, and a full one that shares the verifier's (B41)."""
    some = prompts[:20]
    answers = random_served.engine.run(staggered(some))[: len(some)]
    assert wrong(answers, reference, some) == []
    mine = [block for block in random_served.engine.blocks if block.request < len(some)]
    assert len(mine) > 200
    assert random_served.blocks.wrong(mine, some, answers) == []


def test_c04_b41_tables_are_the_verifiers(random_served: Served) -> None:
    """The borrowed embedding is the verifier's memory; a full-vocabulary draft borrows the head too (C04, B41)."""
    target, draft = random_served.engine.runner.model, random_served.engine.runner.drafter.model
    table = target.embed_tokens.weight
    assert draft.model.embed_tokens.weight.data_ptr() == table.data_ptr()
    shares_head = draft.lm_head.weight.data_ptr() == table.data_ptr()
    assert shares_head == (random_served.name == "dflash-full")


class TestControls:
    """Broken on purpose: text stays right, and only the blocks can tell."""

    def test_context_keys_normed_with_layer_0s_weight(
        self,
        random_served: Served,
        reference: GreedyReference,
        prompts: Prompts,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """vLLM's CPU kernel norms every layer's context keys with layer 0's weight (O8)."""
        monkeypatch.setattr(DraftBackbone, "_normalize_context_k", DFlashQwen3Model._normalize_context_k)
        self._blocks_differ(random_served, reference, prompts)

    def test_one_aux_tap_off_by_one(
        self,
        random_served: Served,
        reference: GreedyReference,
        prompts: Prompts,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        decoder = random_served.engine.runner.model.model
        first, *others = decoder.aux_hidden_state_layers
        assert first + 1 not in others
        monkeypatch.setattr(decoder, "aux_hidden_state_layers", (first + 1, *others))
        self._blocks_differ(random_served, reference, prompts)

    def test_causal_block(
        self,
        random_served: Served,
        reference: GreedyReference,
        prompts: Prompts,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """A block that sees only its past, as vLLM's own reading of the config would have it (O11)."""
        monkeypatch.setattr(random_served.engine.runner.drafter, "dflash_causal", True)
        self._blocks_differ(random_served, reference, prompts)

    @staticmethod
    def _blocks_differ(served: Served, reference: GreedyReference, prompts: Prompts) -> None:
        some = prompts[10:22]
        answers = served.engine.run([Job(prompt, 32) for prompt in some])
        assert wrong(answers, reference, some, 32) == []
        lines = served.blocks.wrong(served.engine.blocks, some, answers)
        assert len(lines) > len(served.engine.blocks) / 10
