"""The vLLM plugin: teaches vLLM 0.32 the T5Gemma 2 verifier and its block-diffusion drafts.

vLLM calls `register()` through the entry point `t5gemma2` of the group `vllm.general_plugins` in every process it
starts (front end, engine core, worker), sometimes more than once: registering is lazy (model code is imported when a
model is built) and idempotent.
"""

_registered = False


def register() -> None:
    """Register the models and install the hooks of `plugin.vllm_hooks` once a process."""
    global _registered
    if _registered:
        return
    from vllm import ModelRegistry

    from plugin import vllm_hooks
    from plugin.drafts.families import FAMILIES, VERIFIER_ARCHITECTURE

    ModelRegistry.register_model(
        VERIFIER_ARCHITECTURE, "plugin.verifier.model:T5Gemma2ForConditionalGeneration"
    )
    for family in FAMILIES.values():
        ModelRegistry.register_model(family.architecture, family.model)
    vllm_hooks.install()
    _registered = True
