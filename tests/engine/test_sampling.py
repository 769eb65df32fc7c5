"""Sampling with a draft: the verifier's distribution, reproducible by seed, and no harm to greedy neighbours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm.v1.sample import rejection_sampler

from tests.engine.blocks import BlockReference
from tests.engine.harness import InProcessEngine, Job, engine
from tests.engine.test_greedy import Prompts
from tests.reference.greedy import GreedyReference

pytestmark = pytest.mark.engine

SAMPLES = 20_000
SMALLEST_P = 0.01
TEMPERATURE = 0.7
"""Low enough that the draft, fitted to greedy answers, is accepted now and then; high enough for many outcomes."""


@pytest.fixture(scope="module")
def drafted(verifier: Path, fitted: Callable[[str], Path]) -> Iterator[InProcessEngine]:
    """A fitted DFlash draft at K = 7 and room for many short requests."""
    with engine(verifier, fitted("dflash"), 7, max_num_seqs=128, max_model_len=96, block_size=32) as running:
        yield running


def mixed(prompts: Prompts, seeds: tuple[int, int]) -> list[Job]:
    """Two greedy requests beside two seeded ones."""
    greedy = [Job(prompt, 40) for prompt in prompts[20:22]]
    sampled = [
        Job(prompt, 40, temperature=0.8, extra={"seed": seed})
        for prompt, seed in zip(prompts[22:24], seeds, strict=True)
    ]
    return [greedy[0], sampled[0], greedy[1], sampled[1]]


def test_b34_greedy_and_sampled_side_by_side(
    drafted: InProcessEngine, reference: GreedyReference, prompts: Prompts
) -> None:
    """Ten times the same four; greedy ones as alone, sampled ones reproducible (B34)."""
    jobs = mixed(prompts, (1, 2))
    runs = [[answer.tokens for answer in drafted.run(jobs)] for _ in range(10)]
    alone = [drafted.run([job])[0].tokens for job in jobs]
    assert all(run == alone for run in runs)
    assert [alone[0], alone[2]] == [reference.answer(jobs[i].prompt, 40).tokens for i in (0, 2)]
    assert alone[1] != reference.answer(jobs[1].prompt, 40).tokens
    others = [drafted.run([job])[0].tokens for job in mixed(prompts, (3, 4))]
    assert others[1] != alone[1] and others[3] != alone[3]


def test_control_temperatures_lost_on_the_cpu(
    drafted: InProcessEngine, reference: GreedyReference, prompts: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With vLLM's own CPU kernel a sampled neighbour spoils greedy requests (O9)."""
    stock = rejection_sampler.expand_batch_to_tokens.__wrapped__
    monkeypatch.setattr(rejection_sampler, "expand_batch_to_tokens", stock)
    jobs = mixed(prompts, (1, 2))
    answers = drafted.run(jobs)
    assert any(answers[i].tokens != reference.answer(jobs[i].prompt, 40).tokens for i in (0, 2))


PARAMETERS: dict[str, dict[str, Any]] = {
    "top_k": {"top_k": 5},
    "top_k of one": {"top_k": 1},
    "top_p": {"top_p": 0.9},
    "both": {"top_k": 5, "top_p": 0.9},
    "penalties": {"presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    "bad words": {"bad_words": ["a"]},
    "allowed ids": {"allowed_token_ids": list(range(10, 60))},
    "min tokens": {"min_tokens": 1},
    "logprobs": {"logprobs": 2, "top_k": 5},
    "seed": {"seed": 3, "top_k": 5},
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_step_without_drafts(
    drafted: InProcessEngine, reference: GreedyReference, prompts: Prompts, name: str
) -> None:
    """A request's first step has nothing drafted: alone, at its end and beside a greedy one, each parameter holds."""
    greedy = Job(prompts[21], 12)
    for limit in (1, 12):
        job = Job(prompts[20], limit, temperature=1.0, ignore_eos=True, extra=PARAMETERS[name])
        (alone,) = drafted.run([job])
        assert len(alone.tokens) == limit
        beside = drafted.run([job, greedy])
        assert len(beside[0].tokens) == limit
        assert beside[1].tokens == reference.answer(greedy.prompt, 12).tokens


def test_control_top_k_over_no_tokens(drafted: InProcessEngine) -> None:
    """Negative control: once this fails, `v1_runner.no_constraints_on_no_tokens` can go."""
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_only

    with pytest.raises(RuntimeError, match="numel"):
        apply_top_k_only(torch.empty(0, 8), torch.empty(0, dtype=torch.int32))


def test_the_distribution_is_the_verifiers(
    drafted: InProcessEngine,
    reference: GreedyReference,
    prompts: Prompts,
    verifier: Path,
    fitted: Callable[[str], Path],
) -> None:
    """20 000 samples of the second token (the first that is drafted), against the exact marginal distribution."""
    draft = BlockReference(fitted("dflash"), verifier, reference)
    prompt = max(prompts[:6], key=lambda p: first_slot_acceptance(draft, reference, p))
    expected = second_token_distribution(reference, prompt, TEMPERATURE)
    before = drafted.counters
    jobs = [
        Job(prompt, 2, ignore_eos=True, temperature=TEMPERATURE, extra={"seed": i}) for i in range(SAMPLES)
    ]
    answers = drafted.run(jobs)
    counters = drafted.counters - before
    assert 0.1 < counters.accepted_per_position[0] / counters.drafts < 0.9, "accepted and recovered tokens"
    observed = Counter(answer.tokens[1] for answer in answers)
    counts = torch.tensor([observed[token] for token in range(len(expected))], dtype=torch.double)
    assert chi_square_p(counts, expected * SAMPLES) > SMALLEST_P
    # The same samples against the distribution of a slightly different temperature must not pass.
    other = second_token_distribution(reference, prompt, TEMPERATURE * 1.05)
    assert chi_square_p(counts, other * SAMPLES) < SMALLEST_P


def first_slot_acceptance(
    draft: BlockReference, reference: GreedyReference, prompt: tuple[int, ...]
) -> float:
    """Probability that the greedy first token is sampled and the token drafted after it accepted."""
    anchor = reference.answer(prompt, 64).tokens[0]
    (token,) = draft.propose(prompt, [anchor], 1).tokens
    probabilities = (reference.logits(prompt, [[anchor]])[0] / TEMPERATURE).softmax(-1)
    return float(probabilities[0, anchor] * probabilities[1, token])


@torch.inference_mode()
def second_token_distribution(
    reference: GreedyReference, prompt: tuple[int, ...], temperature: float
) -> torch.Tensor:
    """`[vocab]`: probability of each second token, summed over all first tokens, in double precision."""
    logits = reference.logits(prompt, [[token] for token in range(reference.model.config.decoder.vocab_size)])
    probabilities = (logits.double() / temperature).softmax(-1)
    first = probabilities[0, 0]
    return first @ probabilities[:, 1]


def chi_square_p(observed: torch.Tensor, expected: torch.Tensor) -> float:
    """Pearson's test with bins of expectation >= 5: rarer outcomes share one bin."""
    common = expected >= 5
    o = torch.cat([observed[common], observed[~common].sum().reshape(1)])
    e = torch.cat([expected[common], expected[~common].sum().reshape(1)])
    if e[-1] < 5:
        o, e = torch.cat([o[:-2], o[-2:].sum().reshape(1)]), torch.cat([e[:-2], e[-2:].sum().reshape(1)])
    assert len(o) > 20
    statistic, freedom = ((o - e) ** 2 / e).sum(), torch.tensor(len(o) - 1.0, dtype=torch.double)
    return float(torch.special.gammaincc(freedom / 2, statistic / 2))
