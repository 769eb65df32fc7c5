"""Drafts in the engine: the text never changes, and every drafted token is the one that the formulas give.

The first is what users see; only the second, and acceptance, can show a draft that is served differently from how it
was trained. Each control breaks one thing and shows that the blocks then differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from vllm.model_executor.models.qwen3_dflash import DFlashQwen3Model

from plugin.drafts.backbone import DraftBackbone
from tests.engine.blocks import BlockReference
from tests.engine.conftest import NEW_TOKENS
from tests.engine.harness import InProcessEngine, Job, engine
from tests.engine.test_greedy import Prompts, staggered, wrong
from tests.reference.greedy import GreedyReference

pytestmark = pytest.mark.engine

FAMILIES = ("dflash", "dspark", "dflare")
KS = (1, 3, 7)


class Served:
    """A running engine with a draft, and what that draft must propose."""

    def __init__(self, running: InProcessEngine, name: str, k: int, blocks: BlockReference) -> None:
        self.engine, self.name, self.k, self.blocks = running, name, k, blocks


@pytest.fixture(
    scope="module", params=[(f, k) for f in FAMILIES for k in KS], ids=lambda p: f"{p[0]}-k{p[1]}"
)
def served(
    request: pytest.FixtureRequest,
    verifier: Path,
    reference: GreedyReference,
    fitted: Callable[[str], Path],
) -> Iterator[Served]:
    """Each family, fitted, at each K, with four slots."""
    name, k = request.param
    draft = fitted(name)
    with engine(verifier, draft, k, enable_prefix_caching=True) as running:
        yield Served(running, name, k, BlockReference(draft, verifier, reference))


class TestFittedDrafts:
    def test_b01_batch_1(self, served: Served, reference: GreedyReference, prompts: Prompts) -> None:
        """B01: token ids as without a draft, blocks as the reference's, counters as the blocks say."""
        answers, lines = [], []
        before = served.engine.counters
        for prompt in prompts:
            answers += (answer := served.engine.run([Job(prompt, NEW_TOKENS)]))
            if served.k == max(KS):  # the other K are compared in the batch below
                lines += served.blocks.wrong(served.engine.blocks, [prompt], answer)
        counters = served.engine.counters - before
        assert wrong(answers, reference, prompts) == []
        assert lines == []
        assert counters.draft_tokens == counters.drafts * served.k
        assert sum(counters.accepted_per_position.values()) == counters.accepted_tokens
        accepted = [counters.accepted_per_position[i] for i in range(served.k)]
        assert accepted == sorted(accepted, reverse=True) and accepted[0] <= counters.drafts
        assert 0.2 < counters.acceptance < 0.9, "a fitted draft is often right and often wrong"

    def test_b01_batch_4(self, served: Served, reference: GreedyReference, prompts: Prompts) -> None:
        """B01, with requests that join and leave."""
        jobs = staggered(prompts)
        answers = served.engine.run(jobs)
        assert wrong(answers[: len(prompts)], reference, prompts) == []
        mine = [block for block in served.engine.blocks if block.request < len(prompts)]
        assert served.blocks.wrong(mine, prompts, answers[: len(prompts)]) == []

    def test_b05_b08_nothing_is_left_behind(
        self, served: Served, reference: GreedyReference, prompts: Prompts
    ) -> None:
        """B05, B08: A, then B, then A twice; asking for prefix caching changes nothing, it is off."""
        assert served.engine.config.cache_config.enable_prefix_caching is False
        long, short = max(prompts, key=len), prompts[2]
        assert len(long) >= 200
        runs = []
        for prompt in (long, short, long, long):
            before = served.engine.counters
            answer = served.engine.run([Job(prompt, NEW_TOKENS)])
            assert wrong(answer, reference, [prompt]) == []
            runs.append(served.engine.counters - before)
        assert runs[0] == runs[2] == runs[3]

    def test_b06_acceptance_in_a_batch_is_the_solo_one(
        self, served: Served, reference: GreedyReference, prompts: Prompts
    ) -> None:
        """B06: 40 staggered requests of 8 distinct prompts in 4 slots."""
        distinct = sorted(prompts, key=len)[4:48:6][:8]
        before = served.engine.counters
        for prompt in distinct:
            served.engine.run([Job(prompt, NEW_TOKENS)])
        solo = served.engine.counters - before
        many = [distinct[i % 8] for i in range(40)]
        before = served.engine.counters
        answers = served.engine.run([Job(p, NEW_TOKENS, join_at=2 * i) for i, p in enumerate(many)])
        together = served.engine.counters - before
        assert wrong(answers, reference, many) == []
        assert together.acceptance == pytest.approx(solo.acceptance, rel=0.05)


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


class TestRandomDrafts:
    def test_blocks(self, random_served: Served, reference: GreedyReference, prompts: Prompts) -> None:
        """B41 among them: a reduced vocabulary with its own head, and a full one that shares the verifier's."""
        some = prompts[:20]
        answers = random_served.engine.run(staggered(some))[: len(some)]
        assert wrong(answers, reference, some) == []
        mine = [block for block in random_served.engine.blocks if block.request < len(some)]
        assert len(mine) > 200
        assert random_served.blocks.wrong(mine, some, answers) == []

    def test_c04_b41_tables_are_the_verifiers(self, random_served: Served) -> None:
        """C04, B41: the borrowed embedding is the verifier's memory; a full-vocabulary draft borrows the head too."""
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
        """verifier.md O8."""
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
        """verifier.md O11."""
        monkeypatch.setattr(random_served.engine.runner.drafter, "dflash_causal", True)
        self._blocks_differ(random_served, reference, prompts)

    @staticmethod
    def _blocks_differ(served: Served, reference: GreedyReference, prompts: Prompts) -> None:
        some = prompts[10:22]
        answers = served.engine.run([Job(prompt, 32) for prompt in some])
        assert wrong(answers, reference, some, 32) == []
        lines = served.blocks.wrong(served.engine.blocks, some, answers)
        assert len(lines) > len(served.engine.blocks) / 10
