"""The vLLM plugin: teaches vLLM 0.32 the T5Gemma 2 verifier and its block-diffusion drafts.

vLLM calls `register()` through the entry point `t5gemma2` of the group `vllm.general_plugins` in every process it
starts (front end, engine core, worker), sometimes more than once: registering is lazy (model code is imported when a
model is built) and idempotent.
"""

import logging
import multiprocessing
import os
from importlib.util import find_spec

_registered = False


def other_app() -> str | None:
    """Where the gateway's `app` would be imported from, when another one of that name hides it; None when it is ours.

    vLLM then fails to load the gateway's own plugins and says only that a module is missing.
    """
    spec = find_spec("app")
    found = None if spec is None else spec.origin or next(iter(spec.submodule_search_locations or ()), None)
    own = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "app")
    return None if found is None or os.path.dirname(os.path.realpath(found)) == own else found


def register() -> None:
    """Register the models and install the hooks of `plugin.vllm_hooks` once a process."""
    global _registered
    if _registered:
        return
    from plugin import quiet_logs
    from plugin.engine_process import end_with_parent

    quiet_logs.hide()
    from vllm import ModelRegistry

    from plugin import vllm_hooks
    from plugin.drafts.families import FAMILIES, VERIFIER_ARCHITECTURE

    if (hides := other_app()) is not None:
        text = "`app` is imported from %s, which hides t5gemma2-serving's own: drafts will not be counted"
        logging.getLogger("plugin").warning(text, hides)
    ModelRegistry.register_model(
        VERIFIER_ARCHITECTURE, "plugin.verifier.model:T5Gemma2ForConditionalGeneration"
    )
    for family in FAMILIES.values():
        ModelRegistry.register_model(family.architecture, family.model)
    vllm_hooks.install()
    if multiprocessing.parent_process() is not None:
        quiet_logs.hide_leaks_at_exit()
        end_with_parent()
    _registered = True
