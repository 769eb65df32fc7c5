"""The encoder prompt as the one item of vLLM's modality "text".

vLLM hands inputs to an encoder only through its multimodal processors. There is nothing to process here: the item is
the token ids, its placeholder covers them all, and the decoder starts with its start token.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from vllm.config.multimodal import BaseDummyOptions
from vllm.inputs import MultiModalDataDict, MultiModalEncDecInput, mm_enc_dec_input, mm_input
from vllm.multimodal.inputs import (
    MultiModalBatchedField,
    MultiModalFieldConfig,
    MultiModalFieldElem,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
    PlaceholderRange,
)
from vllm.multimodal.parse import (
    ModalityDataItems,
    MultiModalDataItems,
    MultiModalDataParser,
    ProcessorBatchItems,
)
from vllm.multimodal.processing import (
    BaseDummyInputsBuilder,
    BaseProcessingInfo,
    EncDecMultiModalProcessor,
    PromptUpdate,
)
from vllm.multimodal.processing.context import TimingContext
from vllm.multimodal.processing.inputs import ProcessorInputs
from vllm.renderers import TokenizeParams

from plugin.verifier.config import decoder_start_token_id, max_encoder_len

MODALITY = "text"


class EncoderPrompts(ProcessorBatchItems[Sequence[int] | np.ndarray]):
    """Token ids `[length]`, one an item."""

    def __init__(self, data: Sequence[Sequence[int] | np.ndarray]) -> None:
        super().__init__(data, MODALITY)


class TextDataParser(MultiModalDataParser):
    """Adds the modality "text" to vLLM's parsers."""

    def _parse_text_data(self, data: Any) -> ModalityDataItems[Any, Any] | None:
        return EncoderPrompts(data)

    def _get_subparsers(self) -> Mapping[str, Any]:
        return {MODALITY: self._parse_text_data}


class T5Gemma2ProcessingInfo(BaseProcessingInfo):
    """Limits of the encoder input."""

    @property
    def max_encoder_len(self) -> int:
        return max_encoder_len(self.get_hf_config(), self.ctx.model_config.max_model_len)

    def get_data_parser(self) -> MultiModalDataParser:
        return TextDataParser()

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        return {MODALITY: 1}

    def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Mapping[str, int]) -> Mapping[str, int]:
        return {MODALITY: self.max_encoder_len}

    @property
    def skip_prompt_length_check(self) -> bool:
        # vLLM would refuse a prompt that fills the budget; the renderer checks it by our own rule.
        return True

    def get_default_tok_params(self) -> TokenizeParams:
        return TokenizeParams(max_total_tokens=self.max_encoder_len, add_special_tokens=True)


class T5Gemma2DummyInputs(BaseDummyInputsBuilder[T5Gemma2ProcessingInfo]):
    """The largest encoder prompt, for memory profiling."""

    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        return ""

    def get_dummy_mm_data(
        self, seq_len: int, mm_counts: Mapping[str, int], mm_options: Mapping[str, BaseDummyOptions]
    ) -> MultiModalDataDict:
        return {MODALITY: [[0] * self.info.max_encoder_len] * mm_counts.get(MODALITY, 0)}


def encoder_item(ids: np.ndarray) -> MultiModalKwargsItem:
    """One prompt, int64 `[length]`, as vLLM carries it to the worker: a tensor under the key "text"."""
    data = torch.from_numpy(ids)
    return MultiModalKwargsItem({MODALITY: MultiModalFieldElem(data=data, field=MultiModalBatchedField())})


def prompt_identity(ids: Sequence[int] | np.ndarray) -> str:
    """What equal prompts have in common, by which their encoder states are shared: a hash of the ids, in order.

    Nothing else goes into the states: a prompt is encoded from position 0, alone even where it shares a batch, and the
    weights are the engine's, whose change vLLM has empty the cache.
    """
    return hashlib.sha256(np.asarray(ids, dtype=np.int64).tobytes()).hexdigest()


class T5Gemma2Processor(EncDecMultiModalProcessor[T5Gemma2ProcessingInfo]):
    """Builds the engine input directly; the steps of vLLM's generic pipeline are not used.

    The server does this on its event loop, where all streams wait meanwhile: of a long prompt's ids, a list is read
    once (by the renderer), as every reading takes longer than all else here.
    """

    requires_tokenizer = False

    def apply(self, inputs: ProcessorInputs, timing_ctx: TimingContext) -> MultiModalEncDecInput:
        ids = inputs.mm_data_items.get_items(MODALITY, EncoderPrompts).get(0)
        return self.engine_input(np.asarray(ids, dtype=np.int64))

    def engine_input(self, ids: np.ndarray) -> MultiModalEncDecInput:
        """Of a prompt's ids, int64 `[length]`."""
        encoder = mm_input(
            prompt_token_ids=ids.tolist(),
            mm_kwargs=MultiModalKwargsItems({MODALITY: [encoder_item(ids)]}),
            mm_hashes={MODALITY: [prompt_identity(ids)]},
            mm_placeholders={MODALITY: [PlaceholderRange(offset=0, length=len(ids))]},
        )
        return mm_enc_dec_input(encoder, [self._start])

    @cached_property
    def _start(self) -> int:
        return decoder_start_token_id(self.info.get_hf_config())

    def create_encoder_prompt(self, prompt: list[int], mm_items: MultiModalDataItems) -> list[int]:
        return prompt

    def _get_mm_fields_config(
        self, hf_inputs: Any, hf_processor_mm_kwargs: Mapping[str, object]
    ) -> Mapping[str, Any]:
        return {MODALITY: MultiModalFieldConfig.batched(MODALITY)}

    def _get_prompt_updates(self, *args: Any, **kwargs: Any) -> Sequence[PromptUpdate]:
        return []
