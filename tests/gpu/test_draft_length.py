"""K while the engine runs, on the GPU: no answer changes, acceptance is the formulas', and every length has its graph.

The V2 runner schedules the next step while one is computed, so that drafts of the K before are in flight at a switch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from plugin.drafts.families import FAMILIES
from tests.gpu.answers import Prompts, check_accepted, check_joins, differing, ids
from tests.gpu.conftest import BATCHES, Mode, cache_for, gpu_engine
from tests.gpu.test_graphs import LOGPROB, replays
from tests.reference.fixtures import NEW_TOKENS
from tests.reference.greedy import GreedyReference

pytestmark = pytest.mark.gpu

SWITCHES = (7, 7, 7, 0, 0, 3, 3, 3, 1, 7, 0, 5, 5)
"""Every few steps, and two that are over after one."""


@pytest.mark.parametrize("mode", ["eager", "graphs"])
@pytest.mark.parametrize("family", FAMILIES)
def test_switching_under_load(
    verifier: Path,
    reference: GreedyReference,
    prompts: Prompts,
    fitted: Callable[[str], Path],
    family: str,
    mode: Mode,
) -> None:
    """Batches of 1 to 32 at each K in turn, joins and aborts at a K that changes; then ends as they come."""
    from tests.engine.harness import Job

    draft, asked = fitted(family), prompts[: sum(BATCHES)]
    with gpu_engine(verifier, draft, mode=mode) as running:
        for k in (7, 3, 0, 7, 1):
            running.core.set_draft_length(k)
            before = running.counters
            assert differing(ids(running, asked), reference, asked) == []
            counters = running.counters - before
            if k:
                check_accepted(counters, draft, verifier, reference, asked, k)
            else:
                assert counters.drafts == 0
        check_joins(running, reference, prompts, SWITCHES)
        stopping = running.run([Job(prompt, NEW_TOKENS) for prompt in prompts], lengths=SWITCHES)
    wanted = reference.answers(prompts, NEW_TOKENS)
    assert [a.tokens for a in stopping] == [a.tokens for a in wanted]
    assert [a.finish_reason for a in stopping] == [a.finish_reason for a in wanted]


@pytest.mark.parametrize("mode", ["eager", "graphs"])
def test_switching_beside_preemption(
    verifier: Path, reference: GreedyReference, prompts: Prompts, fitted: Callable[[str], Path], mode: Mode
) -> None:
    """A cache for one full request: others wait and start again, with drafts of another K in flight."""
    room = {"max_num_seqs": 8, "block_size": 16, "max_model_len": 64, "max_num_batched_tokens": 320}
    with cache_for(1), gpu_engine(verifier, fitted("dflash"), mode=mode, **room) as running:
        check_joins(running, reference, prompts, SWITCHES)
        assert running.counters.preemptions > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_every_length_has_its_graph_and_none_runs_no_draft(
    verifier: Path, prompts: Prompts, fitted: Callable[[str], Path], family: str
) -> None:
    """Uniform graphs for a few requests; without a draft asked for, one that only writes the draft's context."""
    from tests.engine.harness import Job

    with gpu_engine(verifier, fitted(family), mode="graphs") as running:
        drafting = running.runner.speculator.query_cudagraph_manager
        for k in (0, 1, 2, 3, 5, 7):
            running.core.set_draft_length(k)
            running.run([Job(prompts[0], 4, ignore_eos=True)])  # what was drafted before the switch
            with (
                replays() as seen,
                mock.patch.object(drafting, "run_fullgraph", wraps=drafting.run_fullgraph) as drafted,
            ):
                running.run([Job(prompt, NEW_TOKENS, ignore_eos=True) for prompt in prompts[:4]])
            steps = [step for step in running.scheduled if step.total_num_scheduled_tokens]
            drafts = [graph for graph in seen if graph.uniform_token_count == 8]
            verifies = [graph for graph in seen if graph.uniform_token_count == 1 + k]
            if k == 0:
                assert len(verifies) == len(steps) == len(drafts)
                assert not drafted.called
            else:
                assert len(verifies) > len(steps) / 2
                assert len(seen) >= 2 * len(steps) - 2, "a step verifies and drafts, both as graphs"


@pytest.mark.parametrize("mode", ["eager", "graphs"])
def test_grammars_and_logprobs_beside_a_changing_length(
    verifier: Path, prompts: Prompts, fitted: Callable[[str], Path], mode: Mode
) -> None:
    from vllm.sampling_params import StructuredOutputsParams

    from tests.engine.harness import Job

    grammar: dict[str, Any] = {"structured_outputs": StructuredOutputsParams(regex="[0-9a-f]{24}")}
    jobs = [
        Job(prompts[0], NEW_TOKENS, ignore_eos=True, extra={"logprobs": 0}),
        Job(prompts[1], 26, extra=grammar),
        Job(prompts[2], 26, join_at=3, extra=grammar),
    ]
    with gpu_engine(verifier, fitted("dflash"), mode=mode) as running:
        running.core.set_draft_length(0)
        plain = running.run(jobs)
        switched = running.run(jobs, lengths=SWITCHES)
    assert [answer.tokens for answer in switched] == [answer.tokens for answer in plain]
    mine, theirs = switched[0].chosen_logprobs, plain[0].chosen_logprobs
    assert mine == pytest.approx(theirs, abs=LOGPROB)


def test_steps_say_what_was_drafted_and_how_long_it_took(
    verifier: Path, prompts: Prompts, fitted: Callable[[str], Path]
) -> None:
    """Sums are vLLM's counters at any K; durations stand at each K once it is settled."""
    from tests.engine.harness import Job

    jobs = [Job(prompt, NEW_TOKENS, ignore_eos=True) for prompt in prompts[:8]]
    with gpu_engine(verifier, fitted("dflash"), mode="graphs") as running:
        before = running.counters
        running.run(jobs, lengths=SWITCHES)
        counters, steps = running.counters - before, list(running.steps)
        assert sum(n for step in steps for n, _ in step.drafts.values()) == counters.drafts
        for position in range(7):
            accepted = [a[position] for step in steps for k, (_, a) in step.drafts.items() if k > position]
            assert sum(accepted) == counters.accepted_per_position[position]
        for k in (0, 3, 7):
            running.core.set_draft_length(k)
            running.run(jobs)
            timed = [step for step in running.steps if step.seconds is not None]
            assert {step.k for step in timed} == {k}
            assert len(timed) > len(running.steps) / 2
            assert 0 < min(step.seconds for step in timed) < 1
