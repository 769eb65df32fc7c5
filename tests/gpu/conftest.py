"""The engines of the GPU tests: those of `tests.engine.harness`, in the V2 runner and with CUDA graphs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal
from unittest import mock

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

Mode = Literal["eager", "graphs", "compiled"]
BATCHES = (1, 2, 3, 4, 32)
GPU_SHARE = 0.12
"""vLLM starts only where this share of the memory is free; `make gpu-test` has seven engines at once."""


def gpu_engine(
    verifier: Path,
    draft: Path | None = None,
    k: int = 7,
    *,
    dtype: str = "float32",
    mode: Mode = "eager",
    **extra: Any,
) -> AbstractContextManager[Any]:
    """An engine on the GPU. "graphs" captures full decode graphs without compiling, which takes a minute more."""
    import plugin
    from tests.engine.harness import engine

    plugin.register()
    options: dict[str, Any] = {
        "dtype": dtype,
        "max_num_seqs": max(BATCHES),
        "max_num_batched_tokens": 4096,
        "gpu_memory_utilization": GPU_SHARE,
        "enforce_eager": mode == "eager",
    }
    if mode == "graphs":
        options["compilation_config"] = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
    return engine(verifier, draft, k if draft else None, **(options | extra))


@contextmanager
def cache_for(requests: float) -> Iterator[None]:
    """Engines that start inside have a K/V cache for so many full requests, by vLLM's own count of what one takes.

    `num_gpu_blocks_override` needs that count, and it depends on how vLLM groups and pads the layers: a request takes
    blocks of every group, a full prompt's cross blocks included. Fewer than one full request and vLLM does not start.
    """
    from vllm.v1.core import kv_cache_utils as kv
    from vllm.v1.engine import core

    stock = core.get_kv_cache_configs

    def sized(config: Any, specs: list[dict[str, Any]], available: list[int]) -> Any:
        groups = kv.get_kv_cache_groups(config, dict(specs[0]))
        needed = kv._max_memory_usage_bytes_from_groups(config, groups)
        blocks = needed // kv._pool_bytes_per_block(config, groups)
        config.cache_config.num_gpu_blocks_override = 1 + int(requests * blocks)  # one is the null block
        return stock(config, specs, available)

    with mock.patch.object(core, "get_kv_cache_configs", sized):
        yield
