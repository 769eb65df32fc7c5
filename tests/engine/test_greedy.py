"""Issue A's heart: the verifier's token ids in vLLM equal transformers' greedy `generate`, whatever the batch does.

Each control breaks one thing in the running engine and shows that the comparison then fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from plugin.attention import bidirectional, torch_paged
from tests.engine.harness import Answer, InProcessEngine, Job, engine
from tests.reference.fixtures import NEW_TOKENS
from tests.reference.greedy import GreedyReference
from tests.reference.prompts import prompt_ids
from tests.reference.tiny import WINDOW

pytestmark = pytest.mark.engine

Prompts = list[tuple[int, ...]]
SMALLEST_GAP = 1e-4
"""Logits of float32 engines differ by some 1e-5; a reference nearer to a tie than this would decide nothing."""


@pytest.fixture(scope="module")
def plain(verifier: Path) -> Iterator[InProcessEngine]:
    """Four slots and plenty of cache."""
    with engine(verifier) as running:
        yield running


@pytest.fixture(scope="module")
def crowded(verifier: Path) -> Iterator[InProcessEngine]:
    """Sixteen slots and a cache that holds about three of them: requests are preempted and start again."""
    with engine(verifier, max_num_seqs=16, block_size=32, num_gpu_blocks_override=50) as running:
        yield running


def wrong(
    answers: Sequence[Answer], reference: GreedyReference, prompts: Prompts, max_tokens: int = NEW_TOKENS
) -> list[int]:
    """Which answers differ from transformers' in their token ids or in how they end."""
    expected = reference.answers(prompts, max_tokens)
    return [
        i
        for i, (got, want) in enumerate(zip(answers, expected, strict=True))
        if (got.tokens, got.finish_reason) != (want.tokens, want.finish_reason)
    ]


def staggered(prompts: Prompts) -> list[Job]:
    """Two requests join every three steps; every seventh job is joined by a neighbour that is aborted midway."""
    jobs = [Job(prompt, NEW_TOKENS, join_at=3 * (i // 2)) for i, prompt in enumerate(prompts)]
    leavers = [
        Job(prompt_ids(30 + i, 900 + i), NEW_TOKENS, join_at=jobs[i].join_at, abort_after=11)
        for i in range(0, len(prompts), 7)
    ]
    return jobs + leavers


def test_the_references_are_worth_comparing_with(reference: GreedyReference, prompts: Prompts) -> None:
    answers = reference.answers(prompts, NEW_TOKENS)
    assert min(gap for answer in answers for gap in answer.gaps) > SMALLEST_GAP
    assert len({answer.tokens for answer in answers}) == len(prompts)
    assert sum(answer.finish_reason == "stop" for answer in answers) >= 5
    assert sum(len(set(answer.tokens)) >= 10 for answer in answers) >= 35
    lengths = {len(prompt) for prompt in prompts}
    assert {WINDOW - 1, WINDOW, WINDOW + 1} <= lengths and max(lengths) > 20 * WINDOW


def test_alone(plain: InProcessEngine, reference: GreedyReference, prompts: Prompts) -> None:
    answers = [plain.run([Job(prompt, NEW_TOKENS)])[0] for prompt in prompts]
    assert wrong(answers, reference, prompts) == []


def test_batched(plain: InProcessEngine, reference: GreedyReference, prompts: Prompts) -> None:
    answers = plain.run([Job(prompt, NEW_TOKENS) for prompt in prompts])
    assert wrong(answers, reference, prompts) == []


def test_joining_and_leaving(plain: InProcessEngine, reference: GreedyReference, prompts: Prompts) -> None:
    answers = plain.run(staggered(prompts))
    assert wrong(answers[: len(prompts)], reference, prompts) == []


def test_preempted(crowded: InProcessEngine, reference: GreedyReference, prompts: Prompts) -> None:
    before = crowded.counters
    answers = crowded.run(staggered(prompts))
    assert wrong(answers[: len(prompts)], reference, prompts) == []
    assert (crowded.counters - before).preemptions > 0


@pytest.mark.parametrize("length", [WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, 2 * WINDOW + 1])
def test_c01_lengths_around_the_window(
    plain: InProcessEngine, reference: GreedyReference, length: int
) -> None:
    """Encoder lengths below, at and above the sliding window: ids and ends are transformers' (C01)."""
    prompts = [prompt_ids(length, 500 + seed) for seed in range(3)]
    answers = plain.run([Job(prompt, 24) for prompt in prompts])
    assert wrong(answers, reference, prompts, 24) == []


def test_c02_every_step_sees_the_whole_encoder(plain: InProcessEngine, reference: GreedyReference) -> None:
    """40 encoder tokens, window 8, 60 new tokens; the first encoder token decides the last step too (C02)."""
    first = prompt_ids(40, 77)
    second = (first[0] + 9, *first[1:])
    jobs = [Job(p, 60, ignore_eos=True, extra={"logprobs": 5}) for p in (first, second)]
    answers = plain.run(jobs)
    for answer, prompt in zip(answers, (first, second), strict=True):
        want = reference.answer(prompt, 60, ignore_eos=True)
        for step in (1, WINDOW, WINDOW + 1, 60):
            assert answer.tokens[step - 1] == want.tokens[step - 1]
        assert answer.tokens == want.tokens


def test_c02_the_last_step_still_depends_on_the_first_encoder_token(
    plain: InProcessEngine, reference: GreedyReference
) -> None:
    """Along one and the same forced continuation only the encoder's first token can make the difference (C02)."""
    first = prompt_ids(40, 77)
    prompts = [first, (first[0] + 9, *first[1:])]
    forced = 42
    extra = {"logprobs": 5, "allowed_token_ids": [forced]}  # logprobs are those before the restriction
    answers = plain.run([Job(p, 60, ignore_eos=True, extra=extra) for p in prompts])
    last = []
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.tokens == (forced,) * 60
        want = reference.logprobs(prompt, answer.tokens[:-1])[-1]
        got = {token: entry.logprob for token, entry in answer.logprobs[59].items()}
        for token, logprob in got.items():
            assert logprob == pytest.approx(want[token].item(), abs=1e-3)
        last.append(got)
    assert max(last[0], key=last[0].__getitem__) != max(last[1], key=last[1].__getitem__) or any(
        abs(last[0][token] - last[1][token]) > 0.01 for token in last[0].keys() & last[1].keys()
    )


class TestControls:
    """Broken on purpose: the comparison above must notice."""

    def test_decoder_window_off_by_one(
        self,
        plain: InProcessEngine,
        reference: GreedyReference,
        prompts: Prompts,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        layers = [layer.self_attn.attn for layer in plain.runner.model.model.layers]
        for layer in layers:
            monkeypatch.setattr(layer, "window", layer.window and layer.window + 1)
        assert len(wrong(plain.run([Job(p, NEW_TOKENS) for p in prompts]), reference, prompts)) > 10

    def test_encoder_window_off_by_one(
        self,
        plain: InProcessEngine,
        reference: GreedyReference,
        prompts: Prompts,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        stock = bidirectional.window_sides
        monkeypatch.setattr(
            bidirectional, "window_sides", lambda window: (stock(window)[0] + 1, stock(window)[1])
        )
        assert len(wrong(plain.run([Job(p, NEW_TOKENS) for p in prompts]), reference, prompts)) > 10

    def test_last_encoder_key_dropped(
        self,
        plain: InProcessEngine,
        reference: GreedyReference,
        prompts: Prompts,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        stock = torch_paged.merged_attention

        def short(q: Any, start: Any, longest: int, own: Any, cross: torch_paged.Pages, *rest: Any) -> Any:
            pages = torch_paged.Pages(cross.cache, cross.block_table, cross.seq_lens - 1, cross.max_len)
            return stock(q, start, longest, own, pages, *rest)

        monkeypatch.setattr(torch_paged, "merged_attention", short)
        assert len(wrong(plain.run([Job(p, NEW_TOKENS) for p in prompts]), reference, prompts)) > 10

    def test_encoder_outputs_in_scheduling_order(
        self,
        crowded: InProcessEngine,
        reference: GreedyReference,
        prompts: Prompts,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Without the hook for the encoder's order, resumed requests read each other's prompts (O5)."""
        monkeypatch.setattr(
            GPUModelRunner, "_execute_mm_encoder", GPUModelRunner._execute_mm_encoder.__wrapped__
        )
        assert wrong(crowded.run(staggered(prompts))[: len(prompts)], reference, prompts) != []
