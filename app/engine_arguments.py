"""Settings and checkpoint facts -> vLLM's engine arguments, without importing vLLM.

Every choice that makes vLLM's defaults right for this model and its drafts stands here, where a test can read it.
"""

from __future__ import annotations

from typing import Any

from app.config.settings import Settings, SettingsError, variable
from app.engine import EnginePlan
from plugin.drafts.checkpoint import Checkpoints

BATCHED_TOKENS = 2048
"""Tokens of one engine step unless a full request or a full batch needs more."""


def check_adaptive_verification(settings: Settings, checkpoints: Checkpoints, on_cpu: bool) -> None:
    """Refuse it where it cannot work, before vLLM is imported.

    Raises:
        SettingsError: there is no draft, or no V2 runner with CUDA graphs.
    """
    if not settings.adaptive_verification:
        return
    why = None
    if checkpoints.draft is None:
        why = "needs a draft"
    elif on_cpu:
        why = "needs CUDA: vLLM's V1 runner, which serves on the CPU, has none"
    elif settings.enforce_eager:
        why = f"needs CUDA graphs, which {variable('enforce_eager')}=true switches off"
    if why is not None:
        raise SettingsError(f"{variable('adaptive_verification')}=true {why}")


def engine_arguments(plan: EnginePlan, checkpoints: Checkpoints, on_cpu: bool) -> dict[str, Any]:
    """vLLM's engine arguments for settings and checkpoints. The method is `dflash` for all three families: the draft's
    model class makes the difference.
    """
    settings, identity = plan.settings, plan.identity
    longest = 0 if identity.draft is None else identity.draft.max_k
    # vLLM's scheduler charges a request what it verifies, and again the slots of the block that is drafted next.
    full_batch = identity.max_num_seqs * (1 + 2 * longest)
    needed = max(BATCHED_TOKENS, identity.max_encoder_len, identity.max_model_len, full_batch)
    arguments: dict[str, Any] = {
        "model": checkpoints.verifier.path,
        "served_model_name": list(identity.served_model_names),
        "dtype": dtype(settings.dtype, checkpoints.verifier.dtype, on_cpu),
        "max_model_len": identity.max_model_len,
        "max_num_seqs": identity.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens or needed,
        "hf_overrides": {"max_source_positions": identity.max_encoder_len},
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "kv_cache_memory_bytes": settings.kv_cache_memory_bytes,
        "ec_manager_config": {
            "encoder_cache_manager_cls": "plugin.verifier.encoder.cache.PromptCacheManager",
            "manager_config": {
                "cache_bytes": settings.encoder_cache_bytes,
                "busy_step_tokens": settings.max_encoder_tokens_per_step or (32 if on_cpu else 128),
            },
        },
        "seed": settings.seed,
        "data_parallel_size": settings.data_parallel_size,
        "enforce_eager": on_cpu if settings.enforce_eager is None else settings.enforce_eager,
        "enable_prefix_caching": False,
        "enable_log_requests": False,
        # Its bar fails the start where standard error takes nothing, as on a full disk; `Progress` tells the stage.
        "use_tqdm_on_load": False,
        "otlp_traces_endpoint": settings.otlp_traces_endpoint,
    }
    if checkpoints.draft is not None:
        arguments["speculative_config"] = {
            "model": checkpoints.draft.path,
            "method": "dflash",
            "num_speculative_tokens": checkpoints.k,
        }
        if settings.short_block:
            arguments["speculative_config"]["short_block"] = True
        if settings.adaptive_verification:
            arguments["speculative_config"]["enable_adaptive_verification"] = True
        # Any request may ask for its steps, and to keep them costs the scheduler two list entries a step.
        arguments["per_request_spec_decode_metrics"] = "detailed"
    return arguments


def dtype(asked: str, stored: str, on_cpu: bool) -> str:
    """auto: as stored on the CPU when that is float32 (the demo), else bfloat16."""
    if asked != "auto":
        return asked
    return "float32" if on_cpu and stored == "float32" else "bfloat16"
