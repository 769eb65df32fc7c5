"""Norms behind a projection that is left to them, compiled, under Triton's interpreter.

A process of its own, as `few_tokens_cases`: prints JSON. The ops' programs run on the CPU here, which is made to look
like CUDA where the model asks.
"""

import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.layernorm import GemmaRMSNorm
from vllm.model_executor.layers.linear import UnquantizedLinearMethod

from plugin.projection import few_tokens, residual_norm, triton_linear
from plugin.projection.residual_norm import ResidualNorm, norm_add_norm

WIDTH, INPUTS = 64, 2304
TOKENS = {"in parts": 3, "by PyTorch": few_tokens.MAX_TOKENS + 8}
"""Of a projection that our program cuts into shares, and how many tokens take that way."""
Branch = Callable[[Any, torch.Tensor], Any]


def plain_layer() -> Any:
    """What the ops need of a vLLM linear layer, `[WIDTH, INPUTS]`."""
    made = torch.nn.Module()
    made.bias, made.quant_method = None, UnquantizedLinearMethod()
    weight = (torch.randn(WIDTH, INPUTS) * INPUTS**-0.5).half()
    made.weight = torch.nn.Parameter(weight, requires_grad=False)
    return made


def norm(kind: type) -> Any:
    made = kind(WIDTH, eps=1e-6).half()
    made.weight.data.normal_()
    return made


def results(way: str, branch: Branch, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A sublayer's end in the decoder or in a draft, whose last projection `branch` makes or leaves; compiled whole."""
    torch.manual_seed(1)
    down = plain_layer()
    if way == "decoder":
        first, second = norm(GemmaRMSNorm), norm(GemmaRMSNorm)

        def end(x: torch.Tensor, residual: torch.Tensor) -> Any:
            return norm_add_norm(branch(down, x), residual, first, second)
    else:
        first = norm(ResidualNorm)

        def end(x: torch.Tensor, residual: torch.Tensor) -> Any:
            return first(branch(down, x), residual)

    return tuple(torch.compile(end, backend="eager", fullgraph=True)(x, residual))


def facts(way: str, tokens: int) -> dict[str, float]:
    """|left to the norm - apart|, and the launches that each takes: shares, and the sum of their parts."""
    torch.manual_seed(0)
    x, residual = torch.randn(tokens, INPUTS).half(), torch.randn(tokens, WIDTH).half()
    found: dict[str, float] = {}
    made = []
    for name, branch in (("left", few_tokens.deferred), ("apart", few_tokens.linear)):
        torch.compiler.reset()
        with (
            mock.patch.object(triton_linear, "project_parts", wraps=triton_linear.project_parts) as parts,
            mock.patch.object(triton_linear, "add_up", wraps=triton_linear.add_up) as sums,
        ):
            made.append(results(way, branch, x, residual))
        found[f"{name}: shares"], found[f"{name}: sums"] = parts.call_count, sums.call_count
    found["error"] = max(float((a - b).abs().max()) for a, b in zip(*made, strict=True))
    found["largest"] = max(float(one.abs().max()) for one in made[0])
    return found


def main() -> None:
    """Print one JSON object: the facts by way and number of tokens."""
    cuda = SimpleNamespace(is_cuda=lambda: True)
    with (
        set_current_vllm_config(VllmConfig()),
        mock.patch.object(few_tokens, "current_platform", cuda),
        mock.patch.object(residual_norm, "current_platform", cuda),
    ):
        found = {
            way: {name: facts(way, tokens) for name, tokens in TOKENS.items()} for way in ("decoder", "draft")
        }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
