"""The device that training runs on, and copies to it that do not wait for it."""

from __future__ import annotations

import torch


def training_device(name: str | None) -> torch.device:
    """The device called `name`; without one cuda where there is any, else the CPU.

    Raises `ValueError` for a name that torch does not know or a device that this machine does not have.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {name}: {' '.join(str(error).split())[:120]}") from None
    return device


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`tensor` on `device`; from pinned memory where that is CUDA, since copies from other memory may wait."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
