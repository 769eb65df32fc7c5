"""The program of few-token projections under Triton's interpreter, a process of its own: prints the errors as JSON."""

import json
import sys

import torch

from plugin.projection.triton_linear import Cut, choose_cut, project

# Name: tokens, outputs, inputs, cut (None: chosen by the module), activation of the gate.
CASES: dict[str, tuple[int, int, int, Cut | None, str]] = {
    "one token": (1, 48, 128, None, ""),
    "eight tokens": (8, 32, 192, Cut(16, 64, 1), ""),
    "sixteen tokens, wide tiles": (16, 64, 256, Cut(32, 128, 2), ""),
    "27 tokens": (27, 48, 128, Cut(16, 64, 1), ""),
    "nothing fetched ahead": (5, 48, 384, Cut(16, 64, 0), ""),
    "gated": (3, 64, 128, Cut(16, 64, 2), "gelu"),
    "gated by silu": (3, 64, 128, Cut(32, 64, 1), "silu"),
}
TOLERANCE = {torch.float32: 2e-3, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def reference(x: torch.Tensor, weight: torch.Tensor, act: str) -> torch.Tensor:
    """In float64."""
    out = x.double() @ weight.double().T
    if not act:
        return out
    gate, up = out.chunk(2, dim=-1)
    if act == "silu":
        return torch.nn.functional.silu(gate) * up
    return torch.nn.functional.gelu(gate, approximate="tanh") * up


def case_error(name: str, device: str, dtype: torch.dtype) -> float:
    """|got - want| / |want|."""
    tokens, outputs, inputs, cut, act = CASES[name]
    torch.manual_seed(0)
    # Rows of a wider tensor, as a slice of a projection would be.
    x = torch.randn(tokens, inputs + 16, dtype=dtype, device=device)[:, :inputs]
    weight = (torch.randn(outputs, inputs, device=device) * inputs**-0.5).to(dtype)
    cut = cut or choose_cut(outputs, inputs)
    assert cut is not None
    want = reference(x, weight, act)
    got = project(x, weight, cut, act)
    return float((got.double() - want).norm() / want.norm())


def main() -> None:
    """Print one JSON object: the error by case."""
    json.dump({name: case_error(name, "cpu", torch.float16) for name in CASES}, sys.stdout)


if __name__ == "__main__":
    main()
