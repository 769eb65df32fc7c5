"""A pass through captured stages, on the CPU: what is copied in, what stays where, and what comes out.

Capture and replay need a GPU; here a replay does again what was done while it was captured, in the same tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.encoder_memory import random_encoder
from plugin.verifier.encoder.capture import pass_graph_sizes
from plugin.verifier.encoder.pass_graphs import PassGraphs
from plugin.verifier.encoder.passes import EncoderPass
from plugin.verifier.encoder.text_encoder import TextEncoder
from tests.reference.tiny import tiny_config

SIZES = (64, 160)


@pytest.fixture(scope="module")
def encoder() -> Iterator[TextEncoder]:
    """The tiny verifier's, random."""
    with random_encoder(tiny_config().encoder.text_config) as made:
        yield made


class FakeGraph:
    """Replays a stage of a pass."""

    recorded: tuple[EncoderPass, int, slice] | None = None

    def replay(self) -> None:
        assert self.recorded is not None
        under_way, stage, rows = self.recorded
        under_way._do(stage, rows)


@pytest.fixture
def graphs(encoder: TextEncoder, monkeypatch: pytest.MonkeyPatch) -> PassGraphs:
    capturing: list[FakeGraph] = []
    stock = EncoderPass._do

    @contextmanager
    def graph(captured: FakeGraph, **_: Any) -> Iterator[None]:
        capturing.append(captured)
        yield
        capturing.clear()

    def recording(self: EncoderPass, stage: int, rows: slice) -> None:
        if capturing:
            assert capturing[0].recorded is None  # one stage, whole
            capturing[0].recorded = self, stage, rows
        stock(self, stage, rows)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr("vllm.utils.torch_utils.current_stream", lambda: None)
    monkeypatch.setattr(EncoderPass, "_do", recording)
    made = PassGraphs(encoder, SIZES, torch.float32)
    made.capture("a pool")
    monkeypatch.setattr(EncoderPass, "_do", stock)
    return made


def prompt(length: int) -> torch.Tensor:
    return torch.randint(9, 200, (length,), generator=torch.Generator().manual_seed(length))


def whole(encoder: TextEncoder, ids: torch.Tensor) -> torch.Tensor:
    length = len(ids)
    bounds = torch.tensor([0, length], dtype=torch.int32)
    states: torch.Tensor = encoder(ids, torch.arange(length), bounds, length)
    return states


def test_stages_in_parts_are_the_whole_pass(encoder: TextEncoder, graphs: PassGraphs) -> None:
    """Prompts of either size, one after another in the same buffers; the states of the first outlive the next."""
    found = {}
    for length in (63, 159, 65, 5):
        under_way = graphs.begin(prompt(length))
        assert under_way is not None
        assert under_way.num_rows == (1 + len(encoder.layers)) * length
        stages = 1
        while rest := under_way.num_rows - under_way.rows_done:
            with pytest.raises(RuntimeError, match=f"done {under_way.rows_done} of"):
                _ = under_way.states
            under_way.advance(min(stages * length, rest))
            stages += 1
        found[length] = under_way.states
    for length, states in found.items():
        assert states.shape == (length, encoder.hidden_size)
        torch.testing.assert_close(states, whole(encoder, prompt(length)), atol=1e-5, rtol=1e-5)


def test_control_a_stage_left_out_is_seen(encoder: TextEncoder, graphs: PassGraphs) -> None:
    under_way = graphs.begin(prompt(50))
    assert under_way is not None
    under_way.advance(3 * 50)
    under_way.rows_done += 50
    under_way.advance(under_way.num_rows - under_way.rows_done)
    assert (under_way.states - whole(encoder, prompt(50))).abs().max() > 1e-3


def test_a_pass_that_is_left_does_not_spoil_the_next(encoder: TextEncoder, graphs: PassGraphs) -> None:
    left = graphs.begin(prompt(150))
    assert left is not None
    left.advance(4 * 150)
    under_way = graphs.begin(prompt(151))
    assert under_way is not None
    under_way.advance(under_way.num_rows)
    torch.testing.assert_close(under_way.states, whole(encoder, prompt(151)), atol=1e-5, rtol=1e-5)


def test_what_is_no_whole_stage_is_refused_and_what_is_too_long_is_not_begun(graphs: PassGraphs) -> None:
    assert graphs.begin(prompt(161)) is None
    under_way = graphs.begin(prompt(50))
    assert under_way is not None
    with pytest.raises(ValueError, match="75 rows are not whole stages of 50"):
        under_way.advance(75)


@pytest.mark.parametrize(
    ("change", "sizes"),
    [
        ({}, [256, 512]),
        ({"busy_step_tokens": 600}, []),
        ({"busy_step_tokens": None}, []),
        ({"cudagraph_mm_encoder": False}, []),
        ({"enforce_eager": True}, []),
    ],
)
def test_sizes_are_those_of_prompts_that_a_step_does_not_encode_at_once(
    change: dict[str, Any], sizes: list[int]
) -> None:
    fields: dict[str, Any] = {"busy_step_tokens": 128, "cudagraph_mm_encoder": True, "enforce_eager": False}
    fields |= change
    config = SimpleNamespace(
        compilation_config=SimpleNamespace(
            cudagraph_mm_encoder=fields["cudagraph_mm_encoder"],
            encoder_cudagraph_token_budgets=[512, 64, 128, 256],
        ),
        model_config=SimpleNamespace(enforce_eager=fields["enforce_eager"]),
        ec_manager_config=SimpleNamespace(manager_config={"busy_step_tokens": fields["busy_step_tokens"]}),
    )
    assert pass_graph_sizes(config) == sizes
