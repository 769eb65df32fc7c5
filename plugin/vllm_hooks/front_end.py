"""Hooks into vLLM's front end: how a prompt becomes an engine input."""

from typing import Any

from plugin.vllm_hooks.hook import HookError, replace


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
