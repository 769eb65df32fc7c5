"""A plain prompt is the encoder's input.

vLLM's renderer gives a prompt without multimodal data to the *decoder* and leaves the encoder empty. This renderer
makes the prompt's token ids the encoder's "text" item, on the one path that `LLM`, `AsyncLLM` and `vllm serve` share.
It acts for T5Gemma 2 only; every other model gets vLLM's own behaviour. Unnecessary once vLLM treats text as an encoder
modality.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from vllm.exceptions import VLLMValidationError
from vllm.inputs import EncoderDecoderInput
from vllm.renderers import TokenizeParams
from vllm.renderers.hf import HfRenderer

from plugin.verifier.config import MODEL_TYPE, max_encoder_len
from plugin.verifier.processing import MODALITY


class T5Gemma2Renderer(HfRenderer):
    """Installed as vLLM's "hf" renderer by `plugin.vllm_hooks`."""

    @property
    def is_t5gemma2(self) -> bool:
        return getattr(self.model_config.hf_config, "model_type", None) == MODEL_TYPE

    @property
    def max_encoder_len(self) -> int:
        return max_encoder_len(self.model_config.hf_config, self.model_config.max_model_len)

    def tokenize_prompts(self, prompts: Any, params: TokenizeParams) -> Any:
        return super().tokenize_prompts(prompts, self._encoder_budget(params))

    async def tokenize_prompts_async(self, prompts: Any, params: TokenizeParams) -> Any:
        return await super().tokenize_prompts_async(prompts, self._encoder_budget(params))

    def _encoder_budget(self, params: TokenizeParams) -> TokenizeParams:
        """vLLM's server limits a prompt to the decoder's length; ours to the encoder's."""
        if not self.is_t5gemma2:
            return params
        # The limit of output tokens belongs to the decoder and is checked there.
        return replace(params, max_total_tokens=self.max_encoder_len, max_output_tokens=0)

    def _process_enc_dec(self, prompt: Any, *, skip_mm_cache: bool = False) -> EncoderDecoderInput:
        return super()._process_enc_dec(self._with_encoder_item(prompt), skip_mm_cache=skip_mm_cache)

    async def _process_enc_dec_async(
        self, prompt: Any, *, skip_mm_cache: bool = False
    ) -> EncoderDecoderInput:
        return await super()._process_enc_dec_async(
            self._with_encoder_item(prompt), skip_mm_cache=skip_mm_cache
        )

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
