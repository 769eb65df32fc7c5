"""The fused norm, addition and norm against the same in float64 and against `GemmaRMSNorm`'s own sequence.

A process of its own runs this under Triton's interpreter, as `tests.plugin.attention.kernel_cases`.
"""

import json
import sys

import torch

from plugin.projection.triton_residual_norm import norm_add_norm

EPS = 1e-6
WIDTHS = (64, 100, 1152)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def inputs(width: int, dtype: torch.dtype, device: str) -> tuple[torch.Tensor, ...]:
    """x (rows of a wider tensor), residual `[5, width]` and two weights `[width]`."""
    generator = torch.Generator().manual_seed(0)
    x, residual = torch.randn(2, 5, width + 16, generator=generator).to(device, dtype)
    weight, next_weight = (0.5 * torch.randn(2, width, generator=generator)).to(device, dtype)
    return x[:, :width], residual[:, :width].contiguous(), weight, next_weight


def sequence(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    next_weight: torch.Tensor,
    wide: torch.dtype,
    *,
    rounded: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The two norms one after another, rounding to x's dtype where `GemmaRMSNorm` does, or also before the last."""

    def norm(y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + EPS) * (w.to(wide) + 1.0)

    branch = norm(x.to(wide), weight).to(x.dtype)
    total = branch.to(wide) + residual.to(wide)
    normed = norm(total.to(x.dtype).to(wide) if rounded else total, next_weight)
    return normed.to(x.dtype), total.to(x.dtype), branch


def worst_plain_error(width: int, dtype: torch.dtype, device: str) -> float:
    """As `worst_error`, of a branch that joins the residual as it is and a norm with the weight itself."""
    x, residual, _, weight = inputs(width, dtype, device)
    wide = torch.float64 if dtype == torch.float32 else torch.float32
    total = x.to(wide) + residual.to(wide)
    normed = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + EPS) * weight.to(wide)
    got = norm_add_norm(x, residual, None, weight, EPS, offset=0.0)
    return max(
        float((a.double() - b.to(dtype).double()).abs().max() / b.abs().max() / torch.finfo(dtype).eps)
        for a, b in zip(got, (normed, total, x), strict=True)
    )


def worst_error(width: int, dtype: torch.dtype, device: str, *, rounded: bool = False) -> float:
    """Largest |fused - sequence| in units of the last place of the largest value, over the three results."""
    case = inputs(width, dtype, device)
    want = sequence(*case, torch.float64 if dtype == torch.float32 else torch.float32, rounded=rounded)
    ulp = torch.finfo(dtype).eps
    return max(
        float((got.double() - w.double()).abs().max() / w.double().abs().max() / ulp)
        for got, w in zip(norm_add_norm(*case, EPS, rounded=rounded), want, strict=True)
    )


def control(device: str) -> float:
    """The error of forgetting the residual, which the comparison must see."""
    x, residual, weight, next_weight = inputs(64, torch.float32, device)
    got = norm_add_norm(x, torch.zeros_like(residual), weight, next_weight, EPS)[0]
    return float((got - sequence(x, residual, weight, next_weight, torch.float64)[0]).abs().max())


def main() -> None:
    """Print one JSON object of errors."""
    errors = {
        f"{width} {name} {rounded}": worst_error(width, dtype, "cpu", rounded=rounded)
        for width in WIDTHS
        for name, dtype in DTYPES.items()
        for rounded in (False, True)
    }
    plain = {
        f"{width} {name}": worst_plain_error(width, dtype, "cpu")
        for width in WIDTHS
        for name, dtype in DTYPES.items()
    }
    json.dump({"errors": errors, "plain": plain, "control": control("cpu")}, sys.stdout)


if __name__ == "__main__":
    main()
