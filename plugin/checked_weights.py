"""The last look at a checkpoint's weights, while vLLM loads them: what no header can tell.

A tensor that is not finite, or a matrix of zeros, is served at 200 with garbage, or with a draft that is never right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from plugin.drafts.facts import CheckpointError

if TYPE_CHECKING:
    import torch

Weights = Iterable[tuple[str, "torch.Tensor"]]


def checked(
    weights: Weights, device: torch.device, never_zero: Callable[[str, torch.Tensor], bool]
) -> Iterator[tuple[str, torch.Tensor]]:
    """`weights` as they are, each looked at first: one reduction a tensor, on the device.

    Args:
        weights: names and tensors of the files.
        device: where the reduction runs.
        never_zero: whether a tensor of zeros is impossible.

    Raises:
        CheckpointError: a tensor that is not finite, is all zero where it cannot be, or stands in two files.
    """
    seen: set[str] = set()
    for name, tensor in weights:
        if name in seen:
            raise CheckpointError(f"tensor {name} stands in two of the checkpoint's files; remove one")
        seen.add(name)
        if tensor.is_floating_point() and tensor.numel():
            # NaN passes through a minimum and a maximum.
            low, high = (float(bound) for bound in tensor.to(device).aminmax())
            if not (abs(low) < float("inf") and abs(high) < float("inf")):
                raise CheckpointError(f"tensor {name} holds values that are not finite")
            if low == high == 0 and never_zero(name, tensor):
                raise CheckpointError(f"tensor {name} is all zero")
        yield name, tensor
