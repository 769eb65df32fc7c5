"""The program of few-token projections under Triton's interpreter, a process of its own: prints what it found as
JSON."""

import json
import sys
from collections.abc import Sequence

import torch

from plugin.projection.few_tokens import MAX_TOKENS
from plugin.projection.triton_linear import Cut, choose_cut, project, project_parts
from plugin.projection.triton_parts import add_up
from plugin.projection.triton_residual_norm import norm_add_norm

# Name: tokens, outputs, inputs, cut (None: chosen by the module), activation of the gate.
CASES: dict[str, tuple[int, int, int, Cut | None, str]] = {
    "one token": (1, 48, 128, None, ""),
    "eight tokens": (8, 32, 192, Cut(16, 64, 1), ""),
    "sixteen tokens, wide tiles": (16, 64, 256, Cut(32, 128, 2), ""),
    "27 tokens": (27, 48, 128, Cut(16, 64, 1), ""),
    "nothing fetched ahead": (5, 48, 384, Cut(16, 64, 0), ""),
    "gated": (3, 64, 128, Cut(16, 64, 2), "gelu"),
    "gated by silu": (3, 64, 128, Cut(32, 64, 1), "silu"),
    "gated, 32 tokens": (32, 64, 128, Cut(16, 64, 1), "gelu"),
    "gated, weights left": (19, 256, 256, Cut(64, 128, 1, num_stages=3), "gelu"),
    "weights left": (8, 128, 256, Cut(64, 128, 0), ""),
    "weights left, 64 tokens": (64, 128, 256, Cut(64, 128, 1, splits=2), ""),
    "57 tokens": (57, 48, 128, Cut(16, 64, 1), ""),
    "two shares": (8, 32, 256, Cut(16, 64, 1, splits=2), ""),
    "nine shares of one tile": (5, 64, 576, Cut(64, 64, 1, splits=9), ""),
    "three shares, 32 tokens": (32, 128, 384, Cut(64, 128, 1, splits=3), ""),
    "shares of three tiles, 17 tokens": (17, 48, 384, Cut(16, 64, 0, splits=2), ""),
    "shares as chosen": (3, 80, 2304, None, ""),
}
IN_PARTS = tuple(name for name, (_, _, _, cut, _) in CASES.items() if cut is not None and cut.splits > 1)
SWEPT_CUTS = {
    "whole": Cut(16, 64, 1),
    "in shares": Cut(32, 64, 1, splits=3),
    "weights left": Cut(64, 64, 1, splits=3),
}
"""With these every number of tokens is tried."""
TOKENS = range(1, MAX_TOKENS + 1)
EPS = 1e-6
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


def operands(
    tokens: int, outputs: int, inputs: int, device: str, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, rows of a wider tensor, as a slice of a projection would be, and a weight."""
    torch.manual_seed(0)
    x = torch.randn(tokens, inputs + 16, dtype=dtype, device=device)[:, :inputs]
    return x, (torch.randn(outputs, inputs, device=device) * inputs**-0.5).to(dtype)


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    """|got - want| / |want|."""
    return float((got.double() - want).norm() / want.norm())


def case_error(name: str, device: str, dtype: torch.dtype) -> float:
    """Of the product, against float64's."""
    tokens, outputs, inputs, cut, act = CASES[name]
    x, weight = operands(tokens, outputs, inputs, device, dtype)
    cut = cut or choose_cut(outputs, inputs, tokens)
    assert cut is not None
    return relative(project(x, weight, cut, act), reference(x, weight, act))


def tokens_error(cut: str, tokens: int, device: str, dtype: torch.dtype) -> float:
    """The same of `tokens` tokens; rows behind them must stay as they are."""
    x, weight = operands(tokens, 64, 192, device, dtype)
    out = torch.full((tokens + 1, 64), 7.0, dtype=dtype, device=device)
    project(x, weight, SWEPT_CUTS[cut], out=out[:tokens])
    assert (out[tokens] == 7.0).all()
    return relative(out[:tokens], reference(x, weight, ""))


def parts_facts(name: str, device: str, dtype: torch.dtype) -> dict[str, float]:
    """What holds of a case's partial sums, 0 where it must, and by how much a share that is left out is seen."""
    tokens, outputs, inputs, cut, _ = CASES[name]
    assert cut is not None
    x, weight = operands(tokens, outputs, inputs, device, dtype)
    parts, again = project_parts(x, weight, cut), project_parts(x, weight, cut)
    whole = project(x, weight, cut)
    shares = zip(x.chunk(cut.splits, dim=1), weight.chunk(cut.splits, dim=1), strict=True)
    want = torch.stack([reference(*share, "") for share in shares])
    in_order = parts[0].clone()
    for part in parts[1:]:
        in_order += part
    norms = torch.randn(2, outputs, device=device).to(dtype)
    residual = torch.randn(tokens, outputs, device=device).to(dtype)
    fused, apart = (norm_add_norm(branch, residual, *norms, EPS) for branch in (parts, whole))
    added, added_apart = (
        norm_add_norm(branch, residual, None, norms[1], EPS, offset=0.0)[:2] for branch in (parts, whole)
    )
    ulp = torch.finfo(dtype).eps

    def ulps(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> float:
        return max(
            float((a.double() - b.double()).abs().max() / b.abs().max() / ulp)
            for a, b in zip(got, want, strict=True)
        )

    return {
        "share": relative(parts, want),
        "run to run": float((parts - again).abs().max()),
        "not in order, or rounded twice": float((whole - in_order.to(dtype)).abs().max()),
        "ulps of a norm": ulps(fused, apart),
        "ulps of a plain norm": ulps(added, added_apart),
        "a share left out": relative(add_up(parts[1:], torch.empty_like(whole)), reference(x, weight, "")),
    }


def main() -> None:
    """Print one JSON object: the errors by case and by tokens, and the facts of parts."""
    dtype = torch.float16
    found = {
        "cases": {name: case_error(name, "cpu", dtype) for name in CASES},
        "tokens": {cut: [tokens_error(cut, n, "cpu", dtype) for n in TOKENS] for cut in SWEPT_CUTS},
        "parts": {name: parts_facts(name, "cpu", dtype) for name in IN_PARTS},
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
