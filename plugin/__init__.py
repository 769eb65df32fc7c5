"""The vLLM plugin: teaches vLLM 0.32 the T5Gemma 2 verifier and its block-diffusion drafts.

vLLM calls `register()` through the entry point `t5gemma2` of the group `vllm.general_plugins` in every process it
starts (front end, engine core, worker), sometimes more than once: registering is lazy (model code is imported when a
model is built) and idempotent.
"""

from typing import Final

VERIFIER_ARCHITECTURE: Final = "T5Gemma2ForConditionalGeneration"

MODELS: Final[tuple[tuple[str, str], ...]] = (
    (VERIFIER_ARCHITECTURE, "plugin.verifier.model:T5Gemma2ForConditionalGeneration"),
    ("T5Gemma2DFlashDraftModel", "plugin.drafts.dflash:T5Gemma2DFlashDraftModel"),
    ("T5Gemma2DSparkDraftModel", "plugin.drafts.dspark:T5Gemma2DSparkDraftModel"),
    ("T5Gemma2DFlareDraftModel", "plugin.drafts.dflare:T5Gemma2DFlareDraftModel"),
)
"""Architecture name -> "module:Class", imported by vLLM only when that architecture is built."""

_registered = False


def register() -> None:
    """Register the models and install the hooks of `plugin.vllm_hooks` once a process."""
    global _registered
    if _registered:
        return
    from vllm import ModelRegistry

    from plugin import vllm_hooks

    for architecture, target in MODELS:
        ModelRegistry.register_model(architecture, target)
    vllm_hooks.install()
    _registered = True
