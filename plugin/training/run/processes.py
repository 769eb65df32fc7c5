"""The processes of a data-parallel run, started by `torchrun`: who this one is, and what all of them decide together.

Gradients travel by torch's `DistributedDataParallel`. What is decided by all (whether to stop, what is not finite, who
goes first) travels between the processors, in a group of its own, in which one may wait for another for days: while the
first makes the verifier's answers, say.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Self, TypeVar

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

_PATIENCE = timedelta(days=30)
Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class Processes:
    """Process `rank` of `count`, `local_rank` on its host; without `control`, a group of processes, there is one."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    control: Any = None

    @classmethod
    @contextmanager
    def joined(cls, device: torch.device) -> Iterator[Self]:
        """The processes that torchrun's variables tell of, which work on `device` or, on CUDA, its like; else this one.

        Raises `ValueError` where the host has fewer devices than processes.
        """
        told = [os.environ.get(name) for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK")]
        count, rank, local_rank = (int(one) for one in told if one) if all(told) else (1, 0, 0)
        if count == 1:
            yield cls()
            return
        if device.type == "cuda":
            if local_rank >= torch.cuda.device_count():
                raise ValueError(f"process {rank}: there are only {torch.cuda.device_count()} CUDA devices")
            torch.cuda.set_device(local_rank)
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        try:
            yield cls(rank, count, local_rank, distributed.new_group(backend="gloo", timeout=_PATIENCE))
        finally:
            distributed.destroy_process_group()

    @property
    def main(self) -> bool:
        """Whether this one writes files and talks to people."""
        return self.rank == 0

    @property
    def launcher(self) -> str:
        """What stands before a command that starts so many processes on each host."""
        if self.count == 1:
            return ""
        return f"torchrun --nproc-per-node {os.environ.get('LOCAL_WORLD_SIZE', self.count)} --no-python "

    def device(self, wanted: torch.device) -> torch.device:
        """This process' own of the devices like `wanted`."""
        return torch.device("cuda", self.local_rank) if self.count > 1 and wanted.type == "cuda" else wanted

    def data_parallel(self, module: Module) -> Module:
        """`module`, or a wrapper that sums gradients: a loss is the process' share times `count`."""
        if self.count == 1:
            return module
        return DistributedDataParallel(module, forward_sync_buffers=False, gradient_as_bucket_view=True)

    def gathered(self, value: Any) -> list[Any]:
        """Everybody's `value`, in the order of ranks."""
        if self.count == 1:
            return [value]
        found: list[Any] = [None] * self.count
        distributed.all_gather_object(found, value, group=self.control)
        return found

    def any(self, flag: bool) -> bool:
        """Whether anybody's `flag` is true."""
        if self.count == 1:
            return flag
        found = torch.tensor(int(flag))
        distributed.all_reduce(found, op=distributed.ReduceOp.MAX, group=self.control)
        return bool(found)

    def summed(self, value: torch.Tensor) -> torch.Tensor:
        """The sum of everybody's `value`, on its device; what it was given may be changed."""
        if self.count > 1:
            distributed.all_reduce(value)
        return value

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """The main process goes through the block alone, then the others do; they fail where it did."""
        if not self.main and self.any(False):
            raise SystemExit(1)
        failed = True
        try:
            yield
            failed = False
        finally:
            if self.main:
                self.any(failed)

    def wait(self) -> None:
        """For everybody."""
        self.any(False)


ALONE: Final = Processes()
"""One process."""
