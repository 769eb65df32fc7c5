"""A plain prompt is the encoder's input.

vLLM's renderer gives a prompt without multimodal data to the *decoder* and leaves the encoder empty. This renderer
makes the prompt's token ids the encoder's "text" item, on the one path that `LLM`, `AsyncLLM` and `vllm serve` share.
It acts for T5Gemma 2 only; every other model gets vLLM's own behaviour. Unnecessary once vLLM treats text as an encoder
modality.
"""

from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from vllm.exceptions import VLLMValidationError
from vllm.inputs import EncoderDecoderInput
from vllm.renderers import TokenizeParams
from vllm.renderers.hf import HfRenderer

from plugin.verifier.config import MODEL_TYPE, max_encoder_len
from plugin.verifier.processing import MODALITY


class T5Gemma2Renderer(HfRenderer):
    """Installed as vLLM's "hf" renderer by `plugin.vllm_hooks`.

    Rendering is done where it is called, on the server's event loop as in a thread of vLLM's: it takes less time than
    the way to a thread and back, which vLLM's processing takes beside its counting, naming and checking of what a
    request may bring to other models.
    """

    # Of transformers' configurations every reading of an attribute is a search.
    @cached_property
    def is_t5gemma2(self) -> bool:
        return getattr(self.model_config.hf_config, "model_type", None) == MODEL_TYPE

    @cached_property
    def max_encoder_len(self) -> int:
        return max_encoder_len(self.model_config.hf_config, self.model_config.max_model_len)

    # Asked for with every request; the tokenizer finds its by way of the token's text.
    @cached_property
    def _eos_token_id(self) -> int | None:
        return super().get_eos_token_id()

    @cached_property
    def _dec_start_token_id(self) -> int:
        return super().get_dec_start_token_id()

    def get_eos_token_id(self) -> int | None:
        return self._eos_token_id

    def get_dec_start_token_id(self) -> int:
        return self._dec_start_token_id

    def tokenize_prompts(self, prompts: Any, params: TokenizeParams) -> Any:
        return super().tokenize_prompts(prompts, self._encoder_budget(params))

    async def tokenize_prompts_async(self, prompts: Any, params: TokenizeParams) -> Any:
        return await super().tokenize_prompts_async(prompts, self._encoder_budget(params))

    def _encoder_budget(self, params: TokenizeParams) -> TokenizeParams:
        """vLLM's server limits a prompt to the decoder's length; ours to the encoder's."""
        if not self.is_t5gemma2:
            return params
        return within_encoder(params, self.max_encoder_len)

    def _process_enc_dec(self, prompt: Any, *, skip_mm_cache: bool = False) -> EncoderDecoderInput:
        return super()._process_enc_dec(self._with_encoder_item(prompt), skip_mm_cache=skip_mm_cache)

    async def _process_enc_dec_async(
        self, prompt: Any, *, skip_mm_cache: bool = False
    ) -> EncoderDecoderInput:
        return await super()._process_enc_dec_async(
            self._with_encoder_item(prompt), skip_mm_cache=skip_mm_cache
        )

    def _process_multimodal(
        self,
        prompt: list[int],
        mm_data: Any,
        mm_uuids: Any,
        mm_processor_kwargs: Any,
        media_io_kwargs: Any = None,
        *,
        skip_mm_cache: bool = False,
    ) -> Any:
        """vLLM's, of the item that `_with_encoder_item` has made; with names from the caller, or where it is to be
        timed, by vLLM's own way."""
        if not self._is_direct or mm_uuids:
            return super()._process_multimodal(
                prompt, mm_data, mm_uuids, mm_processor_kwargs, media_io_kwargs, skip_mm_cache=skip_mm_cache
            )
        (ids,) = mm_data[MODALITY]
        return self.get_mm_processor().engine_input(ids)

    async def _process_tokens_async(self, prompt: Any, *, skip_mm_cache: bool = False) -> Any:
        if not self._is_direct:
            return await super()._process_tokens_async(prompt, skip_mm_cache=skip_mm_cache)
        return self._process_tokens(prompt, skip_mm_cache=skip_mm_cache)

    @cached_property
    def _is_direct(self) -> bool:
        if not self.is_t5gemma2 or self._mm_timing_registry._enabled:
            return False
        config = self.model_config.multimodal_config
        return bool(config is None or config.get_limit_per_prompt(MODALITY))

    def _with_encoder_item(self, prompt: Any) -> Any:
        """Put the encoder prompt's ids into its "text" item.

        Raises:
            VLLMValidationError: no ids, too many, one outside the vocabulary, or other multimodal data.
        """
        if not self.is_t5gemma2:
            return prompt
        encoder_prompt = prompt["encoder_prompt"]
        if encoder_prompt.get("multi_modal_data"):
            raise VLLMValidationError(
                "T5Gemma 2 is served with text prompts only", parameter="multi_modal_data"
            )
        ids = encoder_prompt.get("prompt_token_ids")
        if not ids:
            raise VLLMValidationError("The encoder prompt cannot be empty", parameter="prompt")
        if len(ids) > self.max_encoder_len:
            raise VLLMValidationError(
                f"The encoder prompt has {len(ids)} tokens, more than the {self.max_encoder_len} that this model is "
                "served with",
                parameter="prompt",
                value=len(ids),
            )
        try:
            array = np.array(ids, dtype=np.int64)
            bounds = int(array.min()), int(array.max())
        except OverflowError:
            bounds = min(ids), max(ids)
        # Not vLLM's own check, which also lets through what only the tokenizer knows: the table ends with the model's.
        for token_id in bounds:
            if not 0 <= token_id < self.model_config.get_vocab_size():
                raise VLLMValidationError(
                    f"Token id {token_id} is out of vocabulary", parameter="prompt", value=token_id
                )
        return {**prompt, "encoder_prompt": {**encoder_prompt, "multi_modal_data": {MODALITY: [array]}}}


@lru_cache(maxsize=64)
def within_encoder(params: TokenizeParams, max_encoder_len: int) -> TokenizeParams:
    """With the encoder's budget. The limit of output tokens belongs to the decoder and is checked there."""
    return replace(params, max_total_tokens=max_encoder_len, max_output_tokens=0)
