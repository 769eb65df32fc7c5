"""Between two sublayers: norm of a branch in the decoder, addition to the residual, norm of the sum; one launch.

torch.compile makes two launches of the decoder's: a reduction over more than 1024 elements cannot share one with the
next. And its launches neither begin while the one before drains nor let the next one begin, so that the projection
behind it cannot fetch its weights ahead.

The branch may be a projection that is yet to be made (`Deferred`): whether in parts, which the norm's program adds up,
or as a whole is decided when the op runs, by the number of tokens.
"""

import torch
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm
from vllm.platforms import current_platform
from vllm.utils.torch_utils import direct_register_custom_op

from plugin.projection.few_tokens import Deferred, unsummed


def norm_add_norm_op(
    x: torch.Tensor,
    projection: torch.Tensor | None,
    residual: torch.Tensor,
    weight: torch.Tensor,
    next_weight: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Body of the custom op `t5gemma2_norm_add_norm`; see `norm_add_norm`. With the weight of a `projection` the branch
    is that of `x`."""
    from plugin.projection import triton_residual_norm

    branch = x if projection is None else unsummed(x, projection)
    return triton_residual_norm.norm_add_norm(branch, residual, weight, next_weight, eps)


def add_norm_op(
    x: torch.Tensor, projection: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Body of the custom op `t5gemma2_add_norm`; see `ResidualNorm`, and `norm_add_norm_op` for `projection`."""
    from plugin.projection import triton_residual_norm

    branch = x if projection is None else unsummed(x, projection)
    return triton_residual_norm.norm_add_norm(branch, residual, None, weight, eps, offset=0.0)[:2]


def _fake(
    x: torch.Tensor,
    projection: torch.Tensor | None,
    residual: torch.Tensor,
    weight: torch.Tensor,
    next_weight: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Shape function for torch.compile."""
    return torch.empty_like(residual), torch.empty_like(residual), torch.empty_like(residual)


def _add_norm_fake(
    x: torch.Tensor, projection: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shape function for torch.compile."""
    return torch.empty_like(residual), torch.empty_like(residual)


direct_register_custom_op(op_name="t5gemma2_norm_add_norm", op_func=norm_add_norm_op, fake_impl=_fake)
direct_register_custom_op(op_name="t5gemma2_add_norm", op_func=add_norm_op, fake_impl=_add_norm_fake)


def _apart(x: torch.Tensor | Deferred) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What the ops take: the branch and None, or a projection's input and weight."""
    return (x.x, x.weight) if isinstance(x, Deferred) else (x, None)


def norm_add_norm(
    x: torch.Tensor | Deferred, residual: torch.Tensor, norm: GemmaRMSNorm, next_norm: GemmaRMSNorm
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`branch = norm(x)`, `sum = residual + branch`, `out = next_norm(sum)`, all `[num_tokens, hidden_size]`; x may be
    a projection yet to be made.

    Returns:
        out, sum and branch.
    """
    if current_platform.is_cuda():
        found: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = torch.ops.vllm.t5gemma2_norm_add_norm(
            *_apart(x), residual, norm.weight, next_norm.weight, norm.variance_epsilon
        )
        return found
    branch = norm(x)
    out, total = next_norm(branch, residual)
    return out, total, branch


class ResidualNorm(RMSNorm):
    """vLLM's norm; with a residual on CUDA, as a launch of our own.

    Stock leaves a norm in a compiled model to torch.compile, which knows no programmatic dependent launch. Unnecessary
    once it does.
    """

    def forward(
        self, x: torch.Tensor | Deferred, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """`norm(x)`, or `sum = residual + x` and `(norm(sum), sum)`; all `[num_tokens, hidden_size]`. Beside a residual
        x may be a projection yet to be made."""
        if residual is None or not current_platform.is_cuda():
            found: torch.Tensor | tuple[torch.Tensor, torch.Tensor] = super().forward(x, residual)
            return found
        normed, total = torch.ops.vllm.t5gemma2_add_norm(
            *_apart(x), residual, self.weight, self.variance_epsilon
        )
        return normed, total
