"""Projections of few tokens: the GPU's program, its cuts, and the ops that choose between it and PyTorch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from vllm.model_executor.layers.linear import UnquantizedLinearMethod

from plugin.projection import few_tokens, triton_linear
from plugin.projection.triton_linear import choose_cut
from tests.plugin.attention.interpreted import interpreted_errors
from tests.plugin.projection.few_tokens_cases import CASES, TOLERANCE, case_error, reference

SHAPES_1B = [(1536, 1152), (1152, 1024), (2 * 6912, 1152), (1152, 6912)]


@pytest.fixture(scope="module")
def interpreted() -> dict[str, float]:
    found: dict[str, float] = interpreted_errors("tests.plugin.projection.few_tokens_cases")
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_program_equals_the_product(interpreted: dict[str, float], name: str) -> None:
    assert interpreted[name] < TOLERANCE[torch.float16]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_gpu_the_program_equals_the_product(name: str, dtype: torch.dtype) -> None:
    assert case_error(name, "cuda", dtype) < TOLERANCE[dtype]


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 8, 27, 32])
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES_1B)
def test_gpu_the_ops_equal_the_product_at_the_shapes_of_1b(tokens: int, outputs: int, inputs: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(tokens, inputs, dtype=torch.bfloat16, device="cuda")
    weight = (torch.randn(outputs, inputs, device="cuda") * inputs**-0.5).to(torch.bfloat16)
    for act in ("", "gelu", "silu"):
        want = reference(x, weight, act)
        got = few_tokens.gated_op(x, weight, act) if act else few_tokens.linear_op(x, weight)
        assert float((got.double() - want).norm() / want.norm()) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize(("outputs", "inputs"), [*SHAPES_1B[:3], (48, 32), (262_144, 1152)])
def test_a_cut_covers_the_weight_in_whole_tiles(outputs: int, inputs: int) -> None:
    cut = choose_cut(outputs, inputs)
    assert cut is not None
    assert outputs % cut.block_n == 0
    assert inputs % cut.block_k == 0
    assert 0 <= cut.fetched * cut.block_k <= inputs


@pytest.mark.parametrize(("outputs", "inputs"), [(20, 64), (32, 50), SHAPES_1B[3]])
def test_no_cut_where_tiles_are_not_whole_or_inputs_too_many(outputs: int, inputs: int) -> None:
    assert choose_cut(outputs, inputs) is None


@pytest.mark.parametrize("tokens", [1, 16])
def test_float32_stays_with_pytorch(tokens: int) -> None:
    x, weight = torch.randn(tokens, 64), torch.randn(96, 64)
    assert torch.equal(few_tokens.linear_op(x, weight), x @ weight.T)
    for act in ("gelu", "silu"):
        want = reference(x, weight, act)
        assert torch.allclose(few_tokens.gated_op(x, weight, act).double(), want, rtol=1e-4, atol=1e-4)


def test_without_cuda_a_layer_computes_itself() -> None:
    layer = SimpleNamespace(bias=None, quant_method=None)
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
    assert few_tokens._serves(few, weight, 7)
    assert not few_tokens._serves(many, weight, 7)
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert not few_tokens._serves(few, weight, 7)


@pytest.mark.parametrize(
    ("tokens", "linear", "gated"),
    [(16, True, True), (17, True, False), (32, True, False), (33, False, False)],
)
def test_each_op_has_its_own_number_of_tokens(
    monkeypatch: pytest.MonkeyPatch, tokens: int, linear: bool, gated: bool
) -> None:
    ours: list[str] = []

    def project(x: torch.Tensor, weight: torch.Tensor, cut: object, act: str = "") -> torch.Tensor:
        ours.append(act)
        return x

    monkeypatch.setattr(triton_linear, "project", project)
    x, weight = torch.zeros(tokens, 64, dtype=torch.float16), torch.zeros(64, 64, dtype=torch.float16)
    few_tokens.linear_op(x, weight)
    few_tokens.gated_op(x, weight, "silu")
    assert ours == [""] * linear + ["silu"] * gated
