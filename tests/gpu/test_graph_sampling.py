"""Steps that their graph samples: as many as can be, the same answers as without, whoever runs beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from plugin.drafts.families import FAMILIES
from tests.gpu.answers import Prompts, check_joins, differing, ids
from tests.gpu.conftest import BATCHES, Mode, gpu_engine
from tests.gpu.test_graphs import LOGPROB
from tests.reference.fixtures import NEW_TOKENS
from tests.reference.greedy import GreedyReference

pytestmark = pytest.mark.gpu

LENGTHS = (7, 7, 7, 3, 3, 0, 7, 1, 1, 5)


@contextmanager
def sampled_by_graphs() -> Iterator[list[int]]:
    """Requests of the steps that their graph has sampled, as they come."""
    from plugin.vllm_hooks.v2.graph_sampling import GraphSampling

    seen: list[int] = []
    stock = GraphSampling.output

    def counted(self: Any, batch: Any) -> Any:
        found = stock(self, batch)
        if found is not None:
            seen.append(batch.num_reqs)
        return found

    with mock.patch.object(GraphSampling, "output", counted):
        yield seen


def with_tokens(running: Any) -> list[Any]:
    return [step for step in running.scheduled if step.total_num_scheduled_tokens]


@pytest.mark.parametrize("family", [None, *FAMILIES])
def test_all_steps_of_greedy_requests(
    verifier: Path,
    reference: GreedyReference,
    prompts: Prompts,
    fitted: Callable[[str], Path],
    family: str | None,
) -> None:
    """In batches of 1 to 32, then with requests that join, leave, and a K that changes."""
    from tests.engine.harness import Job

    asked = prompts[: sum(BATCHES)]
    with gpu_engine(verifier, fitted(family) if family else None, mode="graphs") as running:
        for batch in (1, 4, 32):
            with sampled_by_graphs() as seen:
                got = running.run([Job(prompt, NEW_TOKENS, ignore_eos=True) for prompt in asked[:batch]])
            assert differing([list(answer.tokens) for answer in got], reference, asked[:batch]) == []
            assert len(seen) == len(with_tokens(running)), "those that admit, too"
            assert max(seen) == batch
        assert differing(ids(running, asked), reference, asked) == []
        with sampled_by_graphs() as seen:
            check_joins(running, reference, prompts, LENGTHS if family else ())
        assert len(seen) > 0.9 * len(with_tokens(running)), "beside requests that join and leave, too"


@pytest.mark.parametrize("family", [None, "dflash", "dspark"])
def test_requests_of_all_kinds_beside_greedy_ones(
    verifier: Path, prompts: Prompts, fitted: Callable[[str], Path], family: str | None
) -> None:
    """Greedy requests alone at first, then beside sampled ones, log probabilities, penalties and grammars, then alone
    again: as without graphs, and no logits are computed where a graph has them.
    """
    from vllm.sampling_params import StructuredOutputsParams

    from tests.engine.harness import Job

    grammar = {"structured_outputs": StructuredOutputsParams(regex="[0-9a-f]{24}")}
    jobs = [
        *(Job(prompt, NEW_TOKENS, ignore_eos=True) for prompt in prompts[:3]),
        Job(prompts[3], 12, join_at=4, ignore_eos=True, temperature=0.8, extra={"seed": 11}),
        Job(prompts[4], 6, join_at=5, ignore_eos=True, extra={"logprobs": 2}),
        Job(
            prompts[5],
            8,
            join_at=6,
            ignore_eos=True,
            extra={"presence_penalty": 1.0, "frequency_penalty": 0.5},
        ),
        Job(prompts[6], 26, join_at=8, extra=grammar),
        Job(prompts[7], 2 * NEW_TOKENS, join_at=8, ignore_eos=True),
        Job(prompts[8], 20, join_at=9, ignore_eos=True, temperature=1.0, extra={"seed": 12, "top_k": 5}),
    ]
    draft = fitted(family) if family else None

    def run(mode: Mode) -> tuple[list[Any], int, int]:
        with gpu_engine(verifier, draft, mode=mode) as running, sampled_by_graphs() as seen:
            computed = mock.Mock(side_effect=running.runner.model.compute_logits)
            with mock.patch.object(running.runner.model, "compute_logits", computed):
                answers = running.run(jobs)
            if mode == "graphs":
                assert computed.call_count == 0, "all steps are decode steps, and small"
                assert 0 < len(seen) < len(with_tokens(running))
            return answers, len(seen), len(with_tokens(running))

    (eager, without, _), (graphs, _, _) = run("eager"), run("graphs")
    assert without == 0
    assert [answer.tokens for answer in graphs] == [answer.tokens for answer in eager]
    mine, theirs = graphs[4].chosen_logprobs, eager[4].chosen_logprobs
    assert mine == pytest.approx(theirs, abs=LOGPROB)


def test_synthetic_acceptance_draws_the_same(
    verifier: Path, prompts: Prompts, fitted: Callable[[str], Path]
) -> None:
    """The benchmarks' acceptance, of the same seeds with and without graphs: by position as often, and the same tokens,
    since drafts are what is accepted."""
    from tests.engine.harness import Job

    speculative = {
        "model": str(fitted("dflash")), "method": "dflash", "num_speculative_tokens": 7,
        "rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.95 - 0.1 * i for i in range(7)],
    }  # fmt: skip
    jobs = [
        Job(prompt, NEW_TOKENS, join_at=2 * (i // 3), ignore_eos=True, extra={"seed": 100 + i})
        for i, prompt in enumerate(prompts[:9])
    ]

    def run(mode: Mode) -> tuple[list[Any], dict[int, int], int]:
        with (
            sampled_by_graphs() as seen,
            gpu_engine(verifier, mode=mode, speculative_config=speculative) as running,
        ):
            answers = [answer.tokens for answer in running.run(jobs)]
            return answers, dict(running.counters.accepted_per_position), len(seen)

    (eager, accepted, without), (graphs, by_graphs, taken) = run("eager"), run("graphs")
    assert without == 0 and taken > 0
    assert graphs == eager
    assert by_graphs == accepted
    assert 0 < accepted[6] < accepted[0]


def test_the_estimate_of_the_graphs_memory_holds_their_logits(
    verifier: Path, fitted: Callable[[str], Path]
) -> None:
    """vLLM captures the two largest graphs for it, which are too large to have any."""
    from plugin.verifier.decode_graphs import MOST_LOGITS
    from plugin.vllm_hooks.v2.graph_sampling import GraphSampling

    reserved: list[int] = []
    stock = GraphSampling.reserve

    def counted(self: Any, num_tokens: int) -> None:
        reserved.append(num_tokens)
        stock(self, num_tokens)

    with mock.patch.object(GraphSampling, "reserve", counted):
        sizes = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [8, 256, 512]}
        with gpu_engine(
            verifier, fitted("dflash"), mode="graphs", max_num_seqs=64, compilation_config=sizes
        ) as running:
            manager = running.runner.cudagraph_manager
            assert reserved and set(reserved) == {MOST_LOGITS}
            assert max(desc.num_tokens for desc in manager.logits) == MOST_LOGITS
            assert max(desc.num_tokens for desc in manager.graphs) == 512
