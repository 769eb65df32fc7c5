"""The batches that are timed, each over as many copies of its caches as outgrow the L2 cache."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from plugin.attention.launch_shape import LaunchShape
from plugin.attention.paged_batch import BatchSpec, PagedBatch, make_batch
from plugin.attention.triton_kernel import launch_for, merged_attention

L2_BYTES = 60e6


@dataclass(frozen=True, slots=True)
class Workload:
    """Equal requests at the decoder shape of T5Gemma 2 1B: 4 query heads, 1 KV head, head_dim 256, bfloat16.

    `captured_len`: the length, self and encoder each, that the launch is chosen for, as in a graph that serves any
    length; 0 for the batch's own.
    """

    name: str
    requests: int
    query_len: int
    cross_len: int
    self_len: int
    window: int | None = None
    captured_len: int = 0

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values that the step must read."""
        visible = (
            self.self_len if self.window is None else min(self.self_len, self.window + self.query_len - 1)
        )
        return self.requests * (self.cross_len + visible) * 2 * 256 * 2

    def batch(self) -> PagedBatch:
        n = self.requests
        lens = (self.query_len,) * n, (self.self_len,) * n, (self.cross_len,) * n
        return make_batch(BatchSpec(*lens, table_tokens=self.captured_len), "cuda")

    def copies(self) -> list[PagedBatch]:
        """The batch over different caches: at least two, and three times the L2 cache in all, 26 (layers) at most."""
        first = self.batch()
        more = min(max(int(3 * L2_BYTES / self.kv_bytes), 1), 25)
        return [first, *(_with_own_caches(first) for _ in range(more))]


def _with_own_caches(batch: PagedBatch) -> PagedBatch:
    mine, theirs = batch.self_pages, batch.cross_pages
    return replace(
        batch,
        self_pages=replace(mine, cache=mine.cache.clone()),
        cross_pages=replace(theirs, cache=theirs.cache.clone()),
    )


def chosen_launch(workload: Workload, batch: PagedBatch) -> LaunchShape:
    """The launch that the module chooses for the workload."""
    return launch_for(
        batch.q, workload.requests, workload.query_len, batch.self_pages, batch.cross_pages, workload.window
    )


def kernel_calls(
    workload: Workload, batches: list[PagedBatch], launch: LaunchShape | None
) -> list[Callable[[], None]]:
    """One call of the merged attention for each batch."""
    out = torch.empty_like(batches[0].q)

    def call(batch: PagedBatch) -> None:
        merged_attention(
            batch.q, batch.query_start, workload.query_len, batch.self_pages, batch.cross_pages,
            workload.window, 256**-0.5, out, launch=launch,
        )  # fmt: skip

    return [lambda batch=batch: call(batch) for batch in batches]  # type: ignore[misc]


WORKLOADS = (
    Workload("decode, 64 x (2048 + 1024)", 64, 1, 2048, 1024),
    Workload("decode, 64 x (2048 + 1024), window 512", 64, 1, 2048, 1024, 512),
    Workload("verify K=7, 64 x (2048 + 1024)", 64, 8, 2048, 1024),
    Workload("verify K=15, 64 x (2048 + 1024)", 64, 16, 2048, 1024),
    Workload("decode, 1 x (8192 + 1)", 1, 1, 8192, 1),
    Workload("verify K=7, 1 x (8192 + 64)", 1, 8, 8192, 64),
    Workload("decode, 4 x (2048 + 1024)", 4, 1, 2048, 1024),
    Workload("decode, 1 x (64 + 128)", 1, 1, 64, 128),
    Workload("verify K=7, 1 x (64 + 128)", 1, 8, 64, 128),
    Workload("decode, 4 x (64 + 128)", 4, 1, 64, 128),
    Workload("decode, 32 x (64 + 128)", 32, 1, 64, 128),
    Workload("decode, 1 x (64 + 128), captured for 8192", 1, 1, 64, 128, captured_len=8192),
    Workload("verify K=7, 1 x (64 + 128), captured for 8192", 1, 8, 64, 128, captured_len=8192),
    Workload("verify K=7, 4 x (64 + 128), captured for 8192", 4, 8, 64, 128, captured_len=8192),
    Workload("decode, 32 x (64 + 128), captured for 8192", 32, 1, 64, 128, captured_len=8192),
    Workload("verify K=7, 32 x (64 + 128), captured for 1024", 32, 8, 64, 128, captured_len=1024),
)
