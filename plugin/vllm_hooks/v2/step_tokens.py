"""A step's sampled tokens in one tensor, and its copies on the host."""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class StepTokens:
    """Views of one tensor, so that one copy moves all of them.

    Attributes:
        packed: the tensor, int64.
        sampled: `[num_requests, width]`, int64, of which a row's first `num_sampled` are set.
        num_sampled: `[num_requests]`, int32.
        num_rejected: drafts that were not accepted, `[num_requests]`, int32.
    """

    packed: torch.Tensor
    sampled: torch.Tensor
    num_sampled: torch.Tensor
    num_rejected: torch.Tensor

    @classmethod
    def allocate(cls, num_requests: int, width: int, **options: Any) -> "StepTokens":
        """For so many requests, zeros; `options` are those of `torch.zeros`."""
        rows = -(-num_requests // 4) * 4  # each view begins at a multiple of 16 bytes, as new tensors do
        packed = torch.zeros(rows * (1 + width), dtype=torch.int64, **options)
        counts = packed[:rows].view(torch.int32)
        return cls(packed, packed[rows:].view(rows, width), counts[:rows], counts[rows:])

    def of(self, num_requests: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """`sampled`, `num_sampled` and `num_rejected` of the first requests."""
        return self.sampled[:num_requests], self.num_sampled[:num_requests], self.num_rejected[:num_requests]


class HostCopy:
    """Pinned memory for a step's tokens, and the event behind the copy. It is used again for a later step."""

    def __init__(self, num_requests: int, width: int) -> None:
        from vllm.utils.torch_utils import PIN_MEMORY

        self._tokens = StepTokens.allocate(num_requests, width, pin_memory=PIN_MEMORY)
        self._sampled, self._num_sampled = self._tokens.sampled.numpy(), self._tokens.num_sampled.numpy()
        # Who waits sleeps instead of polling the driver, as vLLM's event has it.
        self._copied = torch.cuda.Event(blocking=True)

    def begin(self, tokens: StepTokens, stream: torch.cuda.Stream) -> None:
        """Copy in `stream`, which must be the current one, before anything that it is given later."""
        self._tokens.packed.copy_(tokens.packed, non_blocking=True)
        self._copied.record(stream)

    def read(self, num_requests: int) -> list[list[int]]:
        """Each request's sampled tokens, once they are here."""
        self._copied.synchronize()
        found: list[list[int]] = self._sampled[:num_requests].tolist()
        for tokens, count in zip(found, self._num_sampled[:num_requests].tolist(), strict=True):
            del tokens[count:]
        return found
