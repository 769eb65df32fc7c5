"""T5Gemma2ForConditionalGeneration for vLLM's V1 and V2 runners.

vLLM feeds encoder-decoder models through its multimodal path: the prompt is one item of the modality "text"
(`processing`), and `embed_multimodal` runs the encoder over the items that a step admits. On the V1 runner their states
arrive in `forward` as `encoder_outputs`, once, in the step that also writes the cross K/V; on V2 `model_state` writes
the cross K/V before `forward`, which never sees them.
"""

from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.models.interfaces import SupportsEagle3, SupportsMultiModal
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper, maybe_prefix
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.sequence import IntermediateTensors

from plugin.checked_weights import checked
from plugin.drafts.safetensors_header import loaded_files
from plugin.verifier.decoder import Decoder
from plugin.verifier.encoder.graphs import EncoderGraphs
from plugin.verifier.encoder.text_encoder import TextEncoder
from plugin.verifier.layers import ScaledEmbedding
from plugin.verifier.processing import T5Gemma2DummyInputs, T5Gemma2ProcessingInfo, T5Gemma2Processor

# Names as transformers writes them, with and without the `text_model` level, to the modules below. The table is stored
# once, under the encoder, the decoder, the head or several of them: they are tied.
WEIGHTS = WeightsMapper(
    orig_to_new_prefix={
        "model.encoder.vision_tower.": None,
        "model.encoder.multi_modal_projector.": None,
        "model.encoder.text_model.embed_tokens.": "embed_tokens.",
        "model.encoder.embed_tokens.": "embed_tokens.",
        "model.decoder.embed_tokens.": "embed_tokens.",
        "lm_head.out_proj.": "embed_tokens.",
        "model.encoder.text_model.": "encoder.",
        "model.encoder.": "encoder.",
        "model.decoder.": "model.",
    },
    orig_to_new_stacked={
        ".q_proj": (".qkv_proj", "q"),
        ".k_proj": (".qkv_proj", "k"),
        ".v_proj": (".qkv_proj", "v"),
        ".gate_proj": (".gate_up_proj", 0),
        ".up_proj": (".gate_up_proj", 1),
    },
)


@MULTIMODAL_REGISTRY.register_processor(
    T5Gemma2Processor, info=T5Gemma2ProcessingInfo, dummy_inputs=T5Gemma2DummyInputs
)
class T5Gemma2ForConditionalGeneration(nn.Module, SupportsMultiModal, SupportsEagle3, EncoderGraphs):
    """The verifier. `model` is the decoder, because vLLM looks for the taps and the embedding at `<model>.model`."""

    packed_modules_mapping: ClassVar = {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.config = config = vllm_config.model_config.hf_config
        self.allow_patterns_overrides = loaded_files(vllm_config.model_config.model)
        decoder = config.decoder
        self.embed_tokens = ScaledEmbedding(
            decoder.vocab_size,
            decoder.hidden_size,
            config.eoi_token_index,
            prefix=maybe_prefix(prefix, "embed_tokens"),
        )
        self.encoder = TextEncoder(
            config.encoder.text_config, self.embed_tokens, prefix=maybe_prefix(prefix, "encoder")
        )
        self.model = Decoder(
            vllm_config=vllm_config, embed_tokens=self.embed_tokens, prefix=maybe_prefix(prefix, "model")
        )
        self.lm_head = self.embed_tokens  # tied; a full-vocabulary draft without a head of its own shares it
        self.logits_processor = LogitsProcessor(decoder.vocab_size, soft_cap=decoder.final_logit_softcapping)

    def get_language_model(self) -> nn.Module:
        return self

    @staticmethod
    def get_model_state_cls() -> type:
        """The V2 runner's state for this model."""
        from plugin.verifier.model_state import T5Gemma2ModelState

        return T5Gemma2ModelState

    def embed_multimodal(self, **kwargs: object) -> list[torch.Tensor]:
        """Run the encoder over `text`, a list of id tensors `[length]` (or one `[num_prompts, length]`)."""
        prompts = kwargs.get("text")
        if prompts is None:
            return []
        states = self.encoder_eager_forward(kwargs)
        return list(states.split([prompt.shape[-1] for prompt in prompts]))  # type: ignore[attr-defined]

    def embed_input_ids(
        self,
        input_ids: torch.Tensor,
        multimodal_embeddings: object = None,
        *,
        is_multimodal: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Decoder token embeddings; encoder states are never merged into them."""
        return self.embed_tokens.scaled(input_ids)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
        encoder_outputs: list[torch.Tensor] | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, list[torch.Tensor]]:
        """`[num_tokens]` ids and positions -> `[num_tokens, hidden_size]` (and the taps); see `Decoder.forward`."""
        encoder_states = torch.cat(encoder_outputs) if encoder_outputs else None
        return self.model(input_ids, positions, encoder_states)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """`[num_rows, hidden_size]` -> `[num_rows, vocab_size]`."""
        return self.logits_processor(self.lm_head, hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load a checkpoint in transformers' naming.

        Raises:
            ValueError: a tensor of the model is in no file, an unknown tensor is, tied tensors differ, or one holds
                values that are not finite or, for a matrix, all zero.
        """
        seen: set[str] = set()

        def stored() -> Iterable[tuple[str, torch.Tensor]]:
            for name, tensor in _one_table(checked(weights, self.encoder.device, _never_zero)):
                seen.update(_parts(WEIGHTS.map_name(name) or "", name))
                yield name, tensor

        loaded = AutoWeightsLoader(self).load_weights(stored(), mapper=WEIGHTS)
        expected = {part for name, _ in self.named_parameters() for part in _parts(name)}
        # Text-only checkpoints may leave out the end-of-image row; nothing else may be missing.
        missing = sorted(expected - seen - {"embed_tokens.eoi_embedding"})
        if missing:
            raise ValueError(
                f"the checkpoint has no weights for {', '.join(missing[:5])} ({len(missing)} in all)"
            )
        return loaded | {"embed_tokens.eoi_embedding"}


def _never_zero(name: str, tensor: torch.Tensor) -> bool:
    """A matrix of the text stacks. Norms are stored as offsets from one; the vision tower is not loaded."""
    return tensor.dim() == 2 and WEIGHTS.map_name(name) is not None


def _parts(parameter: str, stored: str | None = None) -> list[str]:
    """What a parameter is stored as: several tensors where vLLM stacks them. With `stored`, the one that it is."""
    for stack, parts in T5Gemma2ForConditionalGeneration.packed_modules_mapping.items():
        if f".{stack}." in parameter:
            held = [part for part in parts if stored is None or f".{part}." in stored]
            return [parameter.replace(stack, part) for part in held]
    return [parameter]


def _one_table(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterable[tuple[str, torch.Tensor]]:
    """Pass each tied tensor on once, and refuse copies that differ: they would be silently dropped.

    transformers ties encoder, decoder and head to the encoder's table when `tie_word_embeddings` is true.
    """
    seen: dict[str, tuple[str, torch.Tensor]] = {}
    for name, tensor in weights:
        new_name = WEIGHTS.map_name(name)
        if new_name is not None and new_name.startswith("embed_tokens."):
            if new_name in seen:
                first, kept = seen[new_name]
                if not torch.equal(kept, tensor):
                    raise ValueError(f"{name} differs from {first}, but the config ties the embeddings")
                continue
            seen[new_name] = (name, tensor)
        yield name, tensor
