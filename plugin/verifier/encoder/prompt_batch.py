"""The prompts that the encoder reads in one call, laid flat: one after another, without padding between them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from vllm.utils.torch_utils import async_tensor_h2d


@dataclass(frozen=True, slots=True)
class PromptBatch:
    """Prompts one after another.

    Attributes:
        ids, positions: `[num_tokens]`, int64; positions count within a prompt.
        cu_seqlens: `[num_prompts + 1]`, int32, where each prompt begins and the last ends.
        lengths: tokens of each prompt, on the host.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    cu_seqlens: torch.Tensor
    lengths: list[int]

    @classmethod
    def of(cls, prompts: Sequence[torch.Tensor], device: torch.device) -> "PromptBatch":
        """Lay out token ids, each `[length]`, and send them to `device` without waiting for it."""
        lengths = [prompt.shape[0] for prompt in prompts]
        ids = torch.cat(list(prompts))
        positions, cu_seqlens = torch.from_numpy(positions_of(lengths)), torch.from_numpy(starts_of(lengths))
        return cls(_on(device, ids), _on(device, positions), _on(device, cu_seqlens), lengths)


def _on(device: torch.device, values: torch.Tensor) -> torch.Tensor:
    if values.device.type == device.type:
        return values
    return values.to(device) if values.device.type != "cpu" else async_tensor_h2d(values, device=device)


def starts_of(lengths: Sequence[int]) -> np.ndarray:
    """`[num_prompts + 1]`, int32: 0 and the running sums."""
    starts = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=starts[1:])
    return starts


def positions_of(lengths: Sequence[int]) -> np.ndarray:
    """`[num_tokens]`, int64: each token's place in its prompt."""
    starts = starts_of(lengths)
    return np.arange(starts[-1], dtype=np.int64) - np.repeat(starts[:-1], lengths)
