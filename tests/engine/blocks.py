"""Compares drafted blocks with the plain-PyTorch reference, slot by slot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from plugin.drafts.vllm_config import longest_draft
from tests.engine.harness import Answer, Block, InProcessEngine
from tests.reference.draft_block import DraftReference, Proposal, aux_states
from tests.reference.greedy import GreedyReference
from tests.reference.tiny import BOS
from tests.reference.tiny_drafts import verifier_table

NEAR_TIE = 1e-3
"""Top-2 gap of the draft's logits (they spread over several units) under which float32 may choose either."""


class BlockReference:
    """What one draft must propose along the verifier's own answers: the first K tokens of its trained block, or with
    `block` of one of so many tokens.
    """

    def __init__(
        self, draft: Path, verifier: Path, reference: GreedyReference, block: int | None = None
    ) -> None:
        self.draft = DraftReference.load(draft, verifier_table(verifier))
        self.reference = reference
        self.block = block or longest_draft(json.loads((draft / "config.json").read_text()))

    def _proposed(self, aux: Tensor, anchor: int, count: int) -> Proposal:
        """The first `count` tokens of a block after `anchor`."""
        whole = self.draft.propose(aux, anchor, self.block)
        return replace(whole, tokens=whole.tokens[:count], gaps=whole.gaps[:count])

    def propose(self, prompt: Sequence[int], outputs: Sequence[int], count: int) -> Proposal:
        """What the draft proposes after `outputs`, the last of which is the anchor."""
        aux = aux_states(self.reference.model, prompt, (BOS, *outputs[:-1]), self.draft.aux_layers)
        return self._proposed(aux, outputs[-1], count)

    def accepted(self, prompt: Sequence[int], answer: Sequence[int], length: int, count: int) -> list[int]:
        """Accepted tokens of every block of `count` that greedy serving drafts on its way to `length` output tokens.

        `answer` is the verifier's own and holds `length + count` tokens: the last block reaches beyond the end.
        """
        assert len(answer) >= length + count
        aux = aux_states(self.reference.model, prompt, (BOS, *answer), self.draft.aux_layers)
        runs, done = [], 1
        while done < length:
            block = self._proposed(aux[:done], answer[done - 1], count).tokens
            wrong = [k for k, token in enumerate(block) if token != answer[done + k]]
            runs.append(wrong[0] if wrong else count)
            done += runs[-1] + 1
        return runs

    def wrong(
        self, blocks: Sequence[Block], prompts: Sequence[tuple[int, ...]], answers: Sequence[Answer]
    ) -> list[str]:
        """One line for each block that differs; `block.request` indexes `prompts` and `answers`.

        Raises:
            AssertionError: there was nothing to compare, or an anchor is not the answer's token.
        """
        aux = [
            aux_states(self.reference.model, prompt, (BOS, *answer.tokens), self.draft.aux_layers)
            if answer.tokens
            else None
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        lines, compared = [], 0
        for block in blocks:
            answer = answers[block.request]
            context = aux[block.request]
            if context is None or block.position > len(answer.tokens):
                continue  # drafted behind the end of a finished answer
            assert block.anchor == answer.tokens[block.position - 1]
            compared += 1
            want = self._proposed(context[: block.position], block.anchor, len(block.tokens))
            for k, (got, token, gap) in enumerate(zip(block.tokens, want.tokens, want.gaps, strict=True)):
                if got != token:
                    if gap > NEAR_TIE:
                        where = f"request {block.request}, position {block.position}, slot {k + 1}"
                        lines.append(f"{where}: {got} for {token} (gap {gap:.5f})")
                    break
        assert compared > 0
        return lines


class Served:
    """A running engine with a draft, and what that draft must propose."""

    def __init__(self, running: InProcessEngine, name: str, k: int, blocks: BlockReference) -> None:
        self.engine, self.name, self.k, self.blocks = running, name, k, blocks
