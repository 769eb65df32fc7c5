"""A pass through captured stages, on the CPU: what is copied in, what stays where, and what comes out.

Capture and replay need a GPU; here a replay does again what was done while it was captured, in the same tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from vllm.v1.worker.gpu import buffer_utils

from benchmarks.encoder_memory import random_encoder
from plugin.verifier.encoder import capture, pass_graphs
from plugin.verifier.encoder.capture import PassSizes, pass_graph_sizes
from plugin.verifier.encoder.pass_graphs import PassGraphs
from plugin.verifier.encoder.passes import EncoderPass
from plugin.verifier.encoder.text_encoder import TextEncoder
from tests.reference.tiny import tiny_config

Capturing = Callable[[TextEncoder, PassSizes], PassGraphs]
SIZES = PassSizes((64, 160), 300)
BEYOND = 1100
"""A size beyond the positions that the tiny verifier's rotation knows."""
PART = 100


@pytest.fixture(scope="module")
def encoder() -> Iterator[TextEncoder]:
    """The tiny verifier's, random."""
    with random_encoder(tiny_config().encoder.text_config) as made:
        yield made


class FakeGraph:
    """Replays a part of a pass."""

    recorded: tuple[EncoderPass, int, slice, tuple[Any, Any]] | None = None

    def replay(self) -> None:
        assert self.recorded is not None
        under_way, stage, rows, (under_way._qkv, under_way._next_qkv) = self.recorded
        under_way._do(stage, rows)


@pytest.fixture
def capturing(monkeypatch: pytest.MonkeyPatch) -> Capturing:
    """Captures passes of some sizes by fakes."""
    under_way: list[FakeGraph] = []
    stock = EncoderPass._do

    @contextmanager
    def graph(captured: FakeGraph, **_: Any) -> Iterator[None]:
        under_way.append(captured)
        yield
        under_way.clear()

    def recording(self: EncoderPass, stage: int, rows: slice) -> None:
        if under_way:
            assert under_way[0].recorded is None  # one part, whole
            under_way[0].recorded = self, stage, rows, (self._qkv, self._next_qkv)
        stock(self, stage, rows)

    monkeypatch.setattr(buffer_utils, "is_uva_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr("vllm.utils.torch_utils.current_stream", lambda: None)
    for module in (capture, pass_graphs):
        monkeypatch.setattr(module, "PART_ROWS", PART)

    def captured_at(encoder: TextEncoder, sizes: PassSizes) -> PassGraphs:
        made = PassGraphs(encoder, sizes, torch.float32)
        with mock.patch.object(EncoderPass, "_do", recording):
            made.capture("a pool")
        return made

    return captured_at


@pytest.fixture
def graphs(encoder: TextEncoder, capturing: Capturing) -> PassGraphs:
    return capturing(encoder, SIZES)


def prompt(length: int) -> torch.Tensor:
    return torch.randint(9, 200, (length,), generator=torch.Generator().manual_seed(length))


def whole(encoder: TextEncoder, ids: torch.Tensor) -> torch.Tensor:
    length = len(ids)
    bounds = torch.tensor([0, length], dtype=torch.int32)
    states: torch.Tensor = encoder(ids, torch.arange(length), bounds, length)
    return states


def test_parts_are_the_whole_pass(encoder: TextEncoder, graphs: PassGraphs) -> None:
    """Prompts of every size, one after another in the same buffers, by one part, and two, and three, ...; the states of
    the first outlive the next. Of 299 tokens and 161 the padding is what stood there before."""
    found = {}
    for length in (63, 299, 159, 65, 161, 5, 300, 200):
        under_way = graphs.begin(prompt(length))
        assert under_way is not None
        assert under_way.num_rows == (1 + len(encoder.layers)) * length
        part = SIZES.part(length)
        ends = [min(row + part, length) + stage * length for stage in range(1 + len(encoder.layers))
                for row in range(0, length, part)]  # fmt: skip
        number = 1
        while ends:
            with pytest.raises(RuntimeError, match=f"done {under_way.rows_done} of"):
                _ = under_way.states
            done, ends = ends[:number], ends[number:]
            under_way.advance(done[-1] - under_way.rows_done)
            number += 1
        found[length] = under_way.states
    for length, states in found.items():
        assert states.shape == (length, encoder.hidden_size)
        torch.testing.assert_close(states, whole(encoder, prompt(length)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("sizes", [PassSizes((BEYOND,)), PassSizes((64,), BEYOND)])
def test_a_size_may_go_beyond_the_positions(
    encoder: TextEncoder, capturing: Capturing, sizes: PassSizes
) -> None:
    """As a program on a GPU would not say."""
    assert any(len(layer.self_attn.rotary_emb.cos_sin_cache) < BEYOND for layer in encoder.layers)
    under_way = capturing(encoder, sizes).begin(prompt(200))
    assert under_way is not None
    under_way.advance(under_way.num_rows)
    torch.testing.assert_close(under_way.states, whole(encoder, prompt(200)), atol=1e-5, rtol=1e-5)


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


def test_what_is_no_whole_part_is_refused_and_what_is_too_long_is_not_begun(graphs: PassGraphs) -> None:
    assert graphs.begin(prompt(301)) is None
    for length, rows, part in ((50, 75, 64), (299, 299 + 150, PART)):
        under_way = graphs.begin(prompt(length))
        assert under_way is not None
        with pytest.raises(
            ValueError, match=f"{rows} rows of a prompt of {length} are not whole parts of {part}"
        ):
            under_way.advance(rows)


@pytest.mark.parametrize(
    ("change", "sizes"),
    [
        ({}, PassSizes((256, 512, 4096), 10_240)),
        ({"longest": 4096}, PassSizes((256, 512, 4096))),
        ({"longest": 131_072}, PassSizes((256, 512, 4096), 32_768)),
        ({"budgets": [512, 64]}, PassSizes((512,))),  # a prompt of 513 tokens would pay for 2048
        ({"busy_step_tokens": 600}, PassSizes((4096,), 10_240)),
        ({"busy_step_tokens": 4096}, PassSizes()),
        ({"busy_step_tokens": None}, PassSizes()),
        ({"cudagraph_mm_encoder": False}, PassSizes()),
        ({"enforce_eager": True}, PassSizes()),
    ],
)
def test_sizes_are_those_of_prompts_that_a_step_does_not_encode_at_once(
    change: dict[str, Any], sizes: PassSizes
) -> None:
    fields: dict[str, Any] = {
        "busy_step_tokens": 128, "cudagraph_mm_encoder": True, "enforce_eager": False, "longest": 9000,
        "budgets": [512, 64, 4096, 128, 256],
    } | change  # fmt: skip
    config: Any = SimpleNamespace(
        compilation_config=SimpleNamespace(
            cudagraph_mm_encoder=fields["cudagraph_mm_encoder"],
            encoder_cudagraph_token_budgets=fields["budgets"],
        ),
        model_config=SimpleNamespace(
            enforce_eager=fields["enforce_eager"],
            hf_config=SimpleNamespace(max_source_positions=fields["longest"]),
        ),
        ec_manager_config=SimpleNamespace(manager_config={"busy_step_tokens": fields["busy_step_tokens"]}),
    )
    assert pass_graph_sizes(config) == sizes
