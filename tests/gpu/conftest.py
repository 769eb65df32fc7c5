"""Fixtures of the GPU tests: tiny verifier and drafts, transformers' float32 answers, engines in the test process."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest

from tests.reference.greedy import GreedyReference
from tests.reference.prompts import mixed_prompts
from tests.reference.tiny import write_verifier
from tests.reference.tiny_drafts import SPECS, write_draft

BATCHES = (1, 2, 3, 4, 32)
NEW_TOKENS = 40


@pytest.fixture(scope="session")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_verifier(tmp_path_factory.mktemp("tiny") / "verifier")


@pytest.fixture(scope="session")
def reference(verifier: Path) -> GreedyReference:
    return GreedyReference(verifier)


@pytest.fixture(scope="session")
def prompts() -> list[tuple[int, ...]]:
    return mixed_prompts(sum(BATCHES))


@pytest.fixture(scope="session")
def draft(verifier: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("drafts")

    def make(name: str) -> Path:
        return (
            folder / name if (folder / name).exists() else write_draft(folder / name, SPECS[name], verifier)
        )

    return make


@contextmanager
def gpu_engine(
    verifier: Path, draft: Path | None = None, k: int = 7, *, dtype: str = "float32", graphs: bool = False
) -> Iterator[Any]:
    """An `LLM` on the GPU. `graphs` captures full decode graphs without compiling, which would take a minute more.

    FlashAttention has no float32: there TRITON_ATTN owns the caches.
    """
    import torch
    from vllm import LLM

    import plugin

    plugin.register()
    speculative: dict[str, Any] | None = None
    if draft is not None:
        speculative = {"model": str(draft), "method": "dflash", "num_speculative_tokens": k}
    llm = LLM(
        model=str(verifier),
        dtype=dtype,
        max_model_len=256,
        max_num_seqs=max(BATCHES),
        max_num_batched_tokens=4096,
        hf_overrides={"max_source_positions": 320},
        kv_cache_memory_bytes=256 << 20,
        enforce_eager=not graphs,
        compilation_config={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"} if graphs else {},
        attention_config={"backend": "TRITON_ATTN" if dtype == "float32" else "FLASH_ATTN"},
        speculative_config=speculative,
    )
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
        torch.cuda.empty_cache()
