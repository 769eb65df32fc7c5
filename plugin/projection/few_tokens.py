"""Projections of few tokens, of decode steps, drafts and short prompts: a program of our own on CUDA, vLLM's layer
else."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from vllm import envs
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.platforms import current_platform
from vllm.utils.torch_utils import direct_register_custom_op

if TYPE_CHECKING:
    from plugin.projection.triton_linear import Cut

MAX_TOKENS = 64
"""Tokens of a step up to which the weights are read by our own program; 0 leaves all steps to cuBLAS.

On an H200 a layer of the decoder takes 30.7 us with it and 45.5 with cuBLAS for one token, 31.9 and 45.8 for eight,
36.8 and 48.3 for 32, 41.2 and 51.7 for 64: layers with weights of their own in one graph, as `python -m
benchmarks.linear` captures them."""


def _serves(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the program takes these: 16-bit, few tokens, and no request for results that do not depend on them."""
    return (
        0 < x.shape[0] <= MAX_TOKENS
        and x.dtype in (torch.bfloat16, torch.float16)
        and x.stride(1) == 1
        and weight.is_contiguous()
        and not envs.VLLM_BATCH_INVARIANT
    )


def _cut(x: torch.Tensor, weight: torch.Tensor, summed_behind: bool = False) -> "Cut | None":
    """How the program takes these, None where cuBLAS does."""
    from plugin.projection import triton_linear

    return triton_linear.choose_cut(*weight.shape, x.shape[0], summed_behind) if _serves(x, weight) else None


def unsummed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`x` times `weight` transposed, `[num_tokens, outputs]`, or parts of it that are yet to be added up and rounded:
    float32 `[splits, num_tokens, outputs]`. `triton_residual_norm.norm_add_norm` takes either."""
    from plugin.projection import triton_linear

    if (cut := _cut(x, weight, summed_behind=True)) is not None:
        return triton_linear.project_parts(x, weight, cut)
    return torch.nn.functional.linear(x, weight)


def linear_op(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Body of the custom op `t5gemma2_linear`; see `linear`."""
    from plugin.projection import triton_linear

    if (cut := _cut(x, weight)) is not None:
        return triton_linear.project(x, weight, cut)
    return torch.nn.functional.linear(x, weight)


def linear_into(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """`linear_op` into `out`, `[num_tokens, outputs]`, contiguous."""
    from plugin.projection import triton_linear

    if (cut := _cut(x, weight)) is not None:
        triton_linear.project(x, weight, cut, out=out)
    else:
        torch.mm(x, weight.t(), out=out)


def gated_op(x: torch.Tensor, weight: torch.Tensor, act: str) -> torch.Tensor:
    """Body of the custom op `t5gemma2_gated`; see `gated`."""
    from plugin.projection import triton_linear

    cut = _cut(x, weight)
    if cut is not None and cut.splits == 1 and weight.shape[0] % (2 * cut.block_n) == 0:
        return triton_linear.project(x, weight, cut, act)
    both = torch.nn.functional.linear(x, weight)
    if x.is_cuda:  # torch.compile does not see this: vLLM's own kernel, one launch
        out = both.new_empty(both.shape[0], both.shape[1] // 2)
        kernel = torch.ops._C.silu_and_mul if act == "silu" else torch.ops._C.gelu_tanh_and_mul
        kernel(out, both)
        return out
    gate, up = both.chunk(2, dim=-1)
    if act == "silu":
        return torch.nn.functional.silu(gate) * up
    return torch.nn.functional.gelu(gate, approximate="tanh") * up


def _linear_fake(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Shape function for torch.compile."""
    return x.new_empty(x.shape[0], weight.shape[0])


def _gated_fake(x: torch.Tensor, weight: torch.Tensor, act: str) -> torch.Tensor:
    """Shape function for torch.compile."""
    return x.new_empty(x.shape[0], weight.shape[0] // 2)


direct_register_custom_op(op_name="t5gemma2_linear", op_func=linear_op, fake_impl=_linear_fake)
direct_register_custom_op(op_name="t5gemma2_gated", op_func=gated_op, fake_impl=_gated_fake)


def plain(layer: Any) -> bool:
    """Whether `layer` is an unquantised linear layer without bias on CUDA, which the ops may take over."""
    return (
        current_platform.is_cuda()
        and layer.bias is None
        and isinstance(layer.quant_method, UnquantizedLinearMethod)
    )


class Deferred(NamedTuple):
    """A projection that is left to the norm behind it, which adds up what the program leaves in parts.

    `x` is `[num_tokens, inputs]`, `weight` `[outputs, inputs]`. `norm_add_norm` and `ResidualNorm` take it in the place
    of the product.
    """

    x: torch.Tensor
    weight: torch.Tensor


def deferred(layer: Any, x: torch.Tensor) -> torch.Tensor | Deferred:
    """`linear(layer, x)` for a norm with a residual behind it: of a plain layer left to that."""
    return Deferred(x, layer.weight) if plain(layer) else linear(layer, x)


def linear(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """`layer(x)` for a vLLM linear layer: `[num_tokens, inputs]` -> `[num_tokens, outputs]`."""
    if plain(layer):
        found: torch.Tensor = torch.ops.vllm.t5gemma2_linear(x, layer.weight)
        return found
    out: torch.Tensor = layer(x)[0]
    return out


def gated(layer: Any, x: torch.Tensor, act: str) -> torch.Tensor:
    """`act(gate x) * up x` of a plain merged layer, gate above up; `act` is "silu" or "gelu" (its tanh form).

    `[num_tokens, inputs]` -> `[num_tokens, outputs / 2]`.
    """
    found: torch.Tensor = torch.ops.vllm.t5gemma2_gated(x, layer.weight, act)
    return found
