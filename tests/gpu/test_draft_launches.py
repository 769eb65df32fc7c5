"""What the host launches for a draft: between two steps of the same requests nothing but one graph."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from plugin.drafts.families import FAMILIES
from tests.gpu.answers import Prompts
from tests.gpu.conftest import gpu_engine
from tests.reference.fixtures import NEW_TOKENS

pytestmark = pytest.mark.gpu

SETTLED = 6
"""Calls of `propose` until the requests and their numbers of tokens stay as they are."""


def launched(call: Callable[[], Any]) -> tuple[Any, Counter[str]]:
    """What `call` returns, and what it asks of the CUDA driver, by name."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        result = call()
        torch.cuda.synchronize()
    names = [event.name for event in profiler.events()]
    # Not what runs on the device: a graph may hold copies.
    return result, Counter(name for name in names if re.match(r"cu(da)?(Graph)?(Launch|Memcpy|Memset)", name))


@pytest.mark.parametrize("k", [7, 3, 0])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_like_the_last_drafts_in_one_launch(
    verifier: Path, prompts: Prompts, fitted: Callable[[str], Path], family: str, k: int
) -> None:
    """With one request and with three, which a graph of four serves."""
    from tests.engine.harness import Job

    with gpu_engine(verifier, fitted(family), mode="graphs") as running:
        running.core.set_draft_length(k)
        speculator = running.runner.speculator
        stock = speculator.propose
        for batch in (1, 3):
            found: list[Counter[str]] = []

            def propose(*args: Any, seen: list[Counter[str]] = found, of: int = batch, **kwargs: Any) -> Any:
                if args[0].num_reqs != of or len(seen) == SETTLED + 3:
                    return stock(*args, **kwargs)
                drafted, names = launched(lambda: stock(*args, **kwargs))
                seen.append(names)
                return drafted

            with mock.patch.object(speculator, "propose", propose):
                running.run([Job(prompt, NEW_TOKENS, ignore_eos=True) for prompt in prompts[:batch]])
            assert [dict(names) for names in found[SETTLED:]] == [{"cudaGraphLaunch": 1}] * 3


@pytest.mark.parametrize("family", FAMILIES)
def test_the_verifiers_graphs_leave_the_taps_where_the_drafts_graphs_read_them(
    verifier: Path, fitted: Callable[[str], Path], family: str
) -> None:
    with gpu_engine(verifier, fitted(family), mode="graphs") as running:
        speculator, manager = running.runner.speculator, running.runner.cudagraph_manager
        (taps,) = manager.aux_hidden_states
        assert taps.data_ptr() == speculator.taps.data_ptr()
        assert speculator.supports_decode_metadata_update and speculator.in_graph
        assert (
            speculator.context_cudagraph_manager.graphs.keys()
            == speculator.query_cudagraph_manager.graphs.keys()
        )
