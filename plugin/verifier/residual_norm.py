"""Between two sublayers of the decoder: norm of a branch, its addition to the residual, norm of the sum; one launch.

torch.compile makes two launches of it: a reduction over more than 1024 elements cannot share one with the next.
"""

import torch
from vllm.model_executor.layers.layernorm import GemmaRMSNorm
from vllm.platforms import current_platform
from vllm.utils.torch_utils import direct_register_custom_op


def norm_add_norm_op(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, next_weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Body of the custom op `t5gemma2_norm_add_norm`; see `norm_add_norm`."""
    from plugin.verifier import triton_residual_norm

    return triton_residual_norm.norm_add_norm(x, residual, weight, next_weight, eps)


def _fake(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, next_weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Shape function for torch.compile."""
    return torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)


direct_register_custom_op(op_name="t5gemma2_norm_add_norm", op_func=norm_add_norm_op, fake_impl=_fake)


def norm_add_norm(
    x: torch.Tensor, residual: torch.Tensor, norm: GemmaRMSNorm, next_norm: GemmaRMSNorm
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`branch = norm(x)`, `sum = residual + branch`, `out = next_norm(sum)`, all `[num_tokens, hidden_size]`.

    Returns:
        out, sum and branch.
    """
    if current_platform.is_cuda():
        found: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = torch.ops.vllm.t5gemma2_norm_add_norm(
            x, residual, norm.weight, next_norm.weight, norm.variance_epsilon
        )
        return found
    branch = norm(x)
    out, total = next_norm(branch, residual)
    return out, total, branch
