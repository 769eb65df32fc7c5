"""Hooks into vLLM's front end: what a request is made into before the engine has it."""

import copy
from enum import Enum
from typing import Any

from plugin.vllm_hooks.hook import HookError, replace

NEVER_CHANGED = {bool, int, float, str, type(None)}
CONTAINERS = {list, dict, set}


def plain_prompts_to_the_encoder() -> None:
    """The renderer class of HF tokenizers, replaced by a subclass: see `plugin.verifier.renderer`.

    Written into the registry's table because `register()` warns about every replacement.
    """
    from vllm.renderers.registry import RENDERER_REGISTRY

    if "hf" not in RENDERER_REGISTRY.renderers:
        raise HookError("vLLM's RENDERER_REGISTRY has no renderer 'hf' any more: see plugin/vllm_hooks")
    RENDERER_REGISTRY.renderers["hf"] = ("plugin.verifier.renderer", "T5Gemma2Renderer")


def max_tokens_by_decoder_length() -> None:
    """vLLM's OpenAI server cuts max_tokens to max_model_len minus the *encoder's* length (500-token prompt, 100 wanted,
    512 in all: 12 tokens). For T5Gemma 2 the decoder's own prompt counts. Unnecessary once vLLM counts decoder tokens.
    """
    from vllm.entrypoints.serve.engine import serving
    from vllm.renderers.inputs import preprocess

    from plugin.verifier.config import MODEL_TYPE

    def make(stock: Any) -> Any:
        def extract_prompt_len(model_config: Any, prompt: Any) -> int:
            if (
                getattr(model_config.hf_config, "model_type", None) != MODEL_TYPE
                or "decoder_prompt" not in prompt
            ):
                return int(stock(model_config, prompt))
            return len(prompt["decoder_prompt"]["prompt_token_ids"])

        return extract_prompt_len

    replace(preprocess, "extract_prompt_len", ("model_config", "prompt"), make)
    serving.extract_prompt_len = preprocess.extract_prompt_len


def sampling_parameters_by_what_can_change() -> None:
    """vLLM gives each request of `LLM.generate` a deep copy of its sampling parameters: forty-five calls, a third of
    what the front end does for a request, nearly all of them for numbers. Here what cannot be changed is shared, what
    can is copied as deeply, and the copy checks itself as vLLM's does. For all models: the copies are the same.

    Unnecessary once vLLM copies no more than it has to.
    """
    from vllm.sampling_params import SamplingParams

    names = SamplingParams.__struct_fields__

    def make(stock: Any) -> Any:
        def clone(self: Any) -> Any:
            if self.skip_clone:
                return stock(self)
            memo: dict[int, Any] = {}
            made = copy.copy(self)
            vars(made).clear()  # what was derived of it
            for name in names:
                value = getattr(made, name)
                kind = type(value)
                if kind in NEVER_CHANGED or isinstance(value, Enum):
                    continue
                empty = kind in CONTAINERS and not value
                setattr(made, name, kind() if empty else copy.deepcopy(value, memo))
            made.__post_init__()
            return made

        return clone

    replace(SamplingParams, "clone", ("self",), make)
