"""Projections of few tokens: the GPU's program, its cuts, and the ops that choose between it and PyTorch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.model_executor.layers.linear import UnquantizedLinearMethod

from plugin.projection import few_tokens, residual_norm, triton_linear
from plugin.projection.triton_linear import Cut, choose_cut
from tests.plugin.attention.interpreted import interpreted_errors
from tests.plugin.projection.few_tokens_cases import (
    CASES,
    IN_PARTS,
    SWEPT_CUTS,
    TOKENS,
    TOLERANCE,
    case_error,
    parts_facts,
    reference,
    tokens_error,
)

SHAPES_1B = [(1536, 1152), (1152, 1024), (2 * 6912, 1152), (1152, 6912)]
TAPS_1B = (1152, 5 * 1152)
ULPS = 4
"""As in `test_residual_norm`."""


@pytest.fixture(scope="module")
def interpreted() -> dict[str, Any]:
    found: dict[str, Any] = interpreted_errors("tests.plugin.projection.few_tokens_cases")
    return found


def check_parts(facts: dict[str, float], dtype: torch.dtype) -> None:
    """What comes next adds up the same bits in every run; a norm's own sums may have another order beside parts; and a
    share that is left out is seen."""
    assert facts["share"] < TOLERANCE[dtype]
    assert facts["run to run"] == facts["not in order, or rounded twice"] == 0
    assert max(facts["ulps of a norm"], facts["ulps of a plain norm"]) < ULPS
    assert facts["a share left out"] > 10 * TOLERANCE[dtype]


@pytest.mark.parametrize("name", CASES)
def test_the_program_equals_the_product(interpreted: dict[str, Any], name: str) -> None:
    assert interpreted["cases"][name] < TOLERANCE[torch.float16]


@pytest.mark.parametrize("cut", SWEPT_CUTS)
def test_any_number_of_tokens_is_projected(interpreted: dict[str, Any], cut: str) -> None:
    errors = interpreted["tokens"][cut]
    assert len(errors) == len(TOKENS)
    assert max(errors) < TOLERANCE[torch.float16]


@pytest.mark.parametrize("name", IN_PARTS)
def test_parts_are_added_up_in_order_and_rounded_once(interpreted: dict[str, Any], name: str) -> None:
    check_parts(interpreted["parts"][name], torch.float16)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gpu_parts_and_any_number_of_tokens(dtype: torch.dtype) -> None:
    for name in IN_PARTS:
        check_parts(parts_facts(name, "cuda", dtype), dtype)
    for cut in SWEPT_CUTS:
        assert max(tokens_error(cut, tokens, "cuda", dtype) for tokens in TOKENS) < TOLERANCE[dtype]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_gpu_the_program_equals_the_product(name: str, dtype: torch.dtype) -> None:
    assert case_error(name, "cuda", dtype) < TOLERANCE[dtype]


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 8, 27, 32, 64])
@pytest.mark.parametrize(("outputs", "inputs"), [*SHAPES_1B, TAPS_1B])
def test_gpu_the_ops_equal_the_product_at_the_shapes_of_1b(tokens: int, outputs: int, inputs: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(tokens, inputs, dtype=torch.bfloat16, device="cuda")
    weight = (torch.randn(outputs, inputs, device="cuda") * inputs**-0.5).to(torch.bfloat16)
    for act in ("", "gelu", "silu"):
        want = reference(x, weight, act)
        got = few_tokens.gated_op(x, weight, act) if act else few_tokens.linear_op(x, weight)
        assert float((got.double() - want).norm() / want.norm()) < TOLERANCE[torch.bfloat16]


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 8, 32, 64])
@pytest.mark.parametrize("inputs", [1024, 6912])
def test_gpu_a_captured_product_in_parts_is_the_same_in_every_replay(tokens: int, inputs: int) -> None:
    torch.manual_seed(0)
    x, weight = (torch.randn(n, inputs, dtype=torch.bfloat16, device="cuda") for n in (tokens, 1152))
    residual, norm = (torch.randn(*n, 1152, dtype=torch.bfloat16, device="cuda") for n in ((tokens,), ()))
    want = residual_norm.norm_add_norm_op(x, weight, residual, norm, norm, 1e-6)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = residual_norm.norm_add_norm_op(x, weight, residual, norm, norm, 1e-6)
    for _ in range(50):
        for one in got:
            one.zero_()
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("tokens", [1, 16, 17, 32])
@pytest.mark.parametrize(
    ("outputs", "inputs"), [*SHAPES_1B, TAPS_1B, (48, 32), (262_144, 1152), (2560, 10_240), (80, 2304)]
)
def test_a_cut_covers_the_weight_in_whole_tiles(outputs: int, inputs: int, tokens: int) -> None:
    cut = choose_cut(outputs, inputs, tokens)
    assert cut is not None
    assert outputs % cut.block_n == 0
    assert inputs % (cut.splits * cut.block_k) == 0
    assert 0 <= cut.fetched * cut.block_k * cut.splits <= inputs
    assert (cut.splits > 1) == (inputs > triton_linear.MAX_INPUTS)
    fetched_bytes = cut.fetched * cut.block_k * cut.splits * outputs * 2
    assert fetched_bytes <= triton_linear.FETCH_BYTES


@pytest.mark.parametrize(
    ("outputs", "inputs", "shares"), [(1152, 1024, 4), (640, 512, 2), (1152, 64, 1), (80, 1024, 1)]
)
def test_few_inputs_have_shares_where_they_are_summed_behind(outputs: int, inputs: int, shares: int) -> None:
    alone, behind = choose_cut(outputs, inputs, 8), choose_cut(outputs, inputs, 8, True)
    assert alone is not None
    assert behind is not None
    assert (alone.splits, behind.splits) == (1, shares)
    assert inputs % (shares * behind.block_k) == outputs % behind.block_n == 0


@pytest.mark.parametrize(("outputs", "inputs", "shares"), [(*SHAPES_1B[3], 9), (*TAPS_1B, 9), (640, 3200, 5)])
def test_shares_make_enough_programs(outputs: int, inputs: int, shares: int) -> None:
    cut = choose_cut(outputs, inputs, 8)
    assert cut is not None
    assert cut.splits == shares
    assert outputs // cut.block_n * shares >= triton_linear.SPLIT_PROGRAMS


@pytest.mark.parametrize(("outputs", "inputs"), [(20, 64), (32, 50), (24, 6912), (64, 17 * 128), (64, 2111)])
def test_no_cut_where_tiles_or_shares_are_not_whole(outputs: int, inputs: int) -> None:
    if inputs == 17 * 128:  # 17 tiles, a prime number of them
        assert triton_linear.MAX_SPLITS < 17
    assert choose_cut(outputs, inputs, 8) is None


@pytest.mark.parametrize("tokens", [1, 8, 16, 17, 32])
def test_tiles_of_gate_and_up_are_whole(tokens: int) -> None:
    cut = choose_cut(*SHAPES_1B[2], tokens)
    assert cut is not None
    assert SHAPES_1B[2][0] % (2 * cut.block_n) == 0


@pytest.mark.parametrize("tokens", [17, 32])
def test_many_tokens_have_fewer_shares_with_more_under_way(tokens: int) -> None:
    few, many = choose_cut(*SHAPES_1B[3], 16), choose_cut(*SHAPES_1B[3], tokens)
    assert few is not None
    assert many is not None
    assert (few.splits, few.num_stages, many.splits, many.num_stages) == (9, 4, 6, 5)


def test_gate_and_up_have_no_shares() -> None:
    x, weight = torch.zeros(2, 128, dtype=torch.float16), torch.zeros(64, 128, dtype=torch.float16)
    with pytest.raises(ValueError, match="2 shares of gate and up"):
        triton_linear.project(x, weight, Cut(16, 64, 0, splits=2), "silu")
    x, weight = torch.randn(2, 2304).half(), (torch.randn(64, 2304) * 2304**-0.5).half()
    cut = choose_cut(64, 2304, 2)
    assert cut is not None
    assert cut.splits > 1
    want = reference(x, weight, "silu")
    got = few_tokens.gated_op(x, weight, "silu")
    assert float((got.double() - want).norm() / want.norm()) < TOLERANCE[torch.float16]


@pytest.mark.parametrize("tokens", [1, 3])
def test_what_cannot_be_cut_stays_with_pytorch(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    monkeypatch.setattr(triton_linear, "project_parts", None)
    x, weight = torch.randn(tokens, 17 * 128).half(), torch.randn(64, 17 * 128).half()
    want, out = torch.nn.functional.linear(x, weight), torch.empty(tokens, 64).half()
    few_tokens.linear_into(x, weight, out)
    for got in (few_tokens.linear_op(x, weight), few_tokens.unsummed(x, weight), out):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("tokens", [1, 16])
def test_float32_stays_with_pytorch(tokens: int) -> None:
    x, weight = torch.randn(tokens, 64), torch.randn(96, 64)
    assert torch.equal(few_tokens.linear_op(x, weight), x @ weight.T)
    for act in ("gelu", "silu"):
        want = reference(x, weight, act)
        assert torch.allclose(few_tokens.gated_op(x, weight, act).double(), want, rtol=1e-4, atol=1e-4)


def test_without_cuda_a_layer_computes_itself() -> None:
    layer = SimpleNamespace(bias=None, quant_method=UnquantizedLinearMethod())
    assert not few_tokens.plain(layer)


def test_a_layer_that_is_taken_over_compiles_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = torch.nn.Module()
    layer.bias, layer.quant_method = None, UnquantizedLinearMethod()
    layer.weight = torch.nn.Parameter(torch.randn(64, 32), requires_grad=False)
    monkeypatch.setattr(few_tokens, "current_platform", SimpleNamespace(is_cuda=lambda: True))

    def mlp(x: torch.Tensor) -> torch.Tensor:
        if few_tokens.plain(layer):
            x = few_tokens.gated(layer, x, "silu")
        return few_tokens.linear(layer, x)

    x = torch.randn(3, 32)
    want = reference(reference(x, layer.weight, "silu"), layer.weight.double(), "")
    compiled = torch.compile(mlp, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(x).double(), want, rtol=1e-4, atol=1e-4)


def test_batch_invariance_and_many_tokens_stay_with_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.zeros(32, 64, dtype=torch.float16)
    few, many = (torch.zeros(n, 64, dtype=torch.float16) for n in (7, 8))
    monkeypatch.setattr(few_tokens, "MAX_TOKENS", 7)
    assert few_tokens._serves(few, weight)
    assert not few_tokens._serves(many, weight)
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert not few_tokens._serves(few, weight)


@pytest.mark.parametrize("tokens", [1, 16, few_tokens.MAX_TOKENS, few_tokens.MAX_TOKENS + 1])
def test_the_program_serves_few_tokens(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    ours: list[str] = []

    def project(x: torch.Tensor, weight: torch.Tensor, cut: object, act: str = "") -> torch.Tensor:
        ours.append(act)
        return x

    monkeypatch.setattr(triton_linear, "project", project)
    x, weight = torch.zeros(tokens, 64, dtype=torch.float16), torch.zeros(64, 64, dtype=torch.float16)
    few_tokens.linear_op(x, weight)
    few_tokens.gated_op(x, weight, "silu")
    assert ours == (["", "silu"] if tokens <= few_tokens.MAX_TOKENS else [])
