"""The V2 runner's per-model state: encoder and cross K/V are done before the decoder runs, so that the decoder's
step is the same for fresh and running requests.

vLLM's own encoder-decoder state hands the encoder's outputs to the decoder, which then has to run eagerly in every step
that admits a request. Here the outputs go straight into the cross pages of all layers; the decoder sees them only
through its pages and may run compiled.
"""

from typing import Any

import torch
from vllm.v1.worker.gpu.model_states.encoder_decoder import EncoderDecoderModelState


class T5Gemma2ModelState(EncoderDecoderModelState):
    """Chosen by `T5Gemma2ForConditionalGeneration.get_model_state_cls`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        from plugin.vllm_hooks.v2_runner import compiled_decoder_beside_encoder_inputs

        compiled_decoder_beside_encoder_inputs()
        self.encoder_outputs: list[torch.Tensor]
        self._attn_metadata: dict[str, Any] = {}

    def prepare_attn(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        self._attn_metadata = super().prepare_attn(*args, **kwargs)
        return self._attn_metadata

    def prepare_inputs_embeds(self, *args: Any, **kwargs: Any) -> None:
        """Run the encoder over the admitted prompts and store their cross K/V.

        vLLM calls this after `prepare_attn` of the same step, whose metadata holds the slots.
        """
        super().prepare_inputs_embeds(*args, **kwargs)
        if self.encoder_outputs:
            self.model.write_cross_kv(torch.cat(self.encoder_outputs), self._attn_metadata)
            self.encoder_outputs = []
