"""What each arm is: the engine that its process starts and the lengths that it runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.engine.figures import ACCEPTANCE_LENGTH, K
from benchmarks.shapes import PUBLISHED, Shape, write_decoder_only, write_draft, write_verifier
from plugin.drafts.families import FAMILIES
from plugin.verifier.config import ENCODER_CACHE_MANAGER

ARMS = ("transformers", "decoder_only", "raw", *FAMILIES)
GPU_SHARE = 0.12
"""vLLM refuses to start where this share of the memory is not free; all arms live at once."""
BATCHED_TOKENS = 8192


def long_prompts(
    tokens: int, step_tokens: int, cache_bytes: int = 0, batched_tokens: int = BATCHED_TOKENS
) -> dict[str, Any]:
    """Engine arguments that prompts of so many tokens need.

    Args:
        tokens: of a prompt, at most.
        step_tokens: of those, what a step beside running requests encodes.
        cache_bytes: of encoder states that are held.
        batched_tokens: of a step, at least.
    """
    return {
        "hf_overrides": {"max_source_positions": tokens},
        "max_num_batched_tokens": max(tokens, batched_tokens),
        "ec_manager_config": {
            "encoder_cache_manager_cls": ENCODER_CACHE_MANAGER,
            "manager_config": {"cache_bytes": cache_bytes, "busy_step_tokens": step_tokens},
        },
    }


def specs(
    root: Path,
    arms: Sequence[str],
    batches: Sequence[int],
    *,
    prompt_tokens: int,
    new_tokens: int,
    shape: Shape = PUBLISHED,
    engine: dict[str, Any] | None = None,
) -> dict[str, dict[str, Any]]:
    """SPEC of `benchmarks.engine.arm` by arm; `engine` overrules arguments of `LLM` for all of them.

    Each captures graphs for the measured batches and nothing else: start-up counts, too.
    """
    verifier = write_verifier(root / "verifier", shape)
    shared: dict[str, Any] = {
        "model": str(verifier),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "max_model_len": 1024,
        "max_num_seqs": max(batches),
        "max_num_batched_tokens": BATCHED_TOKENS,
        "gpu_memory_utilization": GPU_SHARE,
        "kv_cache_memory_bytes": 4 << 30,
        **(engine or {}),
    }
    made: dict[str, dict[str, Any]] = {}
    for arm in arms:
        query_len = 1 + K if arm in FAMILIES else 1
        own: dict[str, Any] = {}
        if arm == "decoder_only":
            peer = write_decoder_only(root / arm, shape)
            own = {"model": str(peer), "enable_prefix_caching": False}
        elif arm in FAMILIES:
            own["speculative_config"] = {
                "model": str(write_draft(root / arm, FAMILIES[arm].name, verifier)),
                "method": "dflash",
                "num_speculative_tokens": K,
                "rejection_sample_method": "synthetic",
                "synthetic_acceptance_length": ACCEPTANCE_LENGTH,
            }
        sizes = sorted({batch * query_len for batch in batches})
        compilation = {**shared.get("compilation_config", {}), "cudagraph_capture_sizes": sizes}
        made[arm] = {
            "kind": "transformers" if arm == "transformers" else "vllm",
            "prompt_tokens": prompt_tokens,
            "new_tokens": new_tokens,
            "query_len": query_len,
            "vocabulary": shape.vocabulary,
            "engine": {**shared, **own, "compilation_config": compilation},
        }
    return made
