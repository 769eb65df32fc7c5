"""A captured graph computes what the same engine computes without one, and is what is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from plugin.drafts.families import FAMILIES
from tests.gpu.answers import Prompts, in_batches
from tests.gpu.conftest import BATCHES, Mode, gpu_engine
from tests.reference.fixtures import NEW_TOKENS

pytestmark = pytest.mark.gpu

LOGPROB = 1e-3
"""How far log probabilities in float32 may differ: a graph pads its batch, and a product of another size sums in
another order.
"""


@contextmanager
def replays() -> Iterator[list[Any]]:
    """The descriptions of all full graphs that are replayed inside."""
    from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager

    seen: list[Any] = []
    stock = CudaGraphManager.run_fullgraph

    def counted(self: Any, description: Any) -> Any:
        seen.append(description)
        return stock(self, description)

    with mock.patch.object(CudaGraphManager, "run_fullgraph", counted):
        yield seen


@pytest.mark.parametrize("family", [None, *FAMILIES])
def test_graphs_equal_eager(
    verifier: Path, prompts: Prompts, fitted: Callable[[str], Path], family: str | None
) -> None:
    """The same ids, and each with the same log probability, in batches of 1 to 32."""
    asked = prompts[: sum(BATCHES)]
    draft = fitted(family) if family else None

    def run(mode: Mode) -> tuple[list[Any], int]:
        with replays() as seen, gpu_engine(verifier, draft, mode=mode) as running:
            return in_batches(running, asked, logprobs=0), len(seen)

    (eager, without), (graphs, replayed) = run("eager"), run("graphs")
    assert without == 0
    assert replayed > len(BATCHES)
    assert [answer.tokens for answer in graphs] == [answer.tokens for answer in eager]
    for one, other in zip(graphs, eager, strict=True):
        assert one.chosen_logprobs == pytest.approx(other.chosen_logprobs, abs=LOGPROB)


@pytest.mark.parametrize("family", [None, "dflash"])
def test_steps_of_a_request_alone_are_like_the_last_but_for_a_few(
    verifier: Path, prompts: Prompts, fitted: Callable[[str], Path], family: str | None
) -> None:
    """Its first token, the first step behind that, and its end are vLLM's; all others are a launch and a replay."""
    from plugin.vllm_hooks.v2.steps import LastStep
    from tests.engine.harness import Job

    again: list[Any] = []
    stock = LastStep.again

    def counted(self: Any, *args: Any) -> None:
        again.append(self)
        stock(self, *args)

    draft = fitted(family) if family else None
    with (
        mock.patch.object(LastStep, "again", counted),
        replays() as seen,
        gpu_engine(verifier, draft, mode="graphs") as running,
    ):
        running.run([Job(prompts[0], NEW_TOKENS, ignore_eos=True)])
    steps = len(seen) // (2 if family else 1)  # the draft's graph is replayed behind the verifier's
    assert steps - 5 <= len(again) < steps
