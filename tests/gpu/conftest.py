"""The engines of the GPU tests: those of `tests.engine.harness`, in the V2 runner and with CUDA graphs."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

Mode = Literal["eager", "graphs", "compiled"]
BATCHES = (1, 2, 3, 4, 32)


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
        "enforce_eager": mode == "eager",
    }
    if mode == "graphs":
        options["compilation_config"] = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
    return engine(verifier, draft, k if draft else None, **(options | extra))
