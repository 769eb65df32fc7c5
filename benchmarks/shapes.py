"""Checkpoint folders with the published shapes and no weights: what vLLM's `load_format="dummy"` needs.

Shapes: `google/t5gemma-2-1b-1b` (26 + 26 layers, hidden 1152, MLP 6912, 4 query heads and 1 K/V head of 256, vocabulary
262 144, window 512, five sliding layers then one full) and its published drafts.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from plugin.drafts.families import Family

VOCABULARY: Final = 262_144
ITEM_BYTES: Final = 2
"""Of a bfloat16 weight."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a smoke run may make smaller; heads stay 4 and 1 of 256, for which the kernels are written."""

    layers: int = 26
    hidden: int = 1152
    intermediate: int = 6912
    vocabulary: int = VOCABULARY

    def text(self) -> dict[str, Any]:
        """The fields of a text configuration."""
        return {
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "max_position_embeddings": 32_768,
            "query_pre_attn_scalar": 256,
            "sliding_window": 512,
        }

    def decode_bytes(self) -> int:
        """Weights that one decoder step must read: all layers and the tied head, without the norms."""
        attention = self.hidden * 256 * (4 + 1 + 1 + 4)
        mlp = 3 * self.hidden * self.intermediate
        return ITEM_BYTES * (self.layers * (attention + mlp) + self.vocabulary * self.hidden)


PUBLISHED: Final = Shape()
SMOKE: Final = Shape(layers=6, hidden=256, intermediate=512, vocabulary=4096)

_ROPE: Final[dict[str, Any]] = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}


def write_verifier(folder: Path, shape: Shape = PUBLISHED) -> Path:
    """config.json of a verifier, 1B-1B unless `shape` says otherwise."""
    from transformers import T5Gemma2Config

    text = {**shape.text(), "rope_parameters": _ROPE}
    config = T5Gemma2Config(
        encoder={"text_config": dict(text), "vision_config": {"num_hidden_layers": 1}},
        decoder=dict(text),
        architectures=["T5Gemma2ForConditionalGeneration"],
        dtype="bfloat16",
    )
    config.save_pretrained(folder)
    return folder


def write_decoder_only(folder: Path, shape: Shape = PUBLISHED) -> Path:
    """config.json of a decoder-only model of the decoder's own shape (Gemma 3 1B): the peer of a decoder step."""
    from transformers import Gemma3TextConfig

    config = Gemma3TextConfig(
        **shape.text(), rope_parameters=_ROPE, architectures=["Gemma3ForCausalLM"], dtype="bfloat16"
    )
    config.save_pretrained(folder)
    return folder


def write_draft(folder: Path, family: Family, verifier: Path) -> Path:
    """config.json of a draft of `family` for the verifier in `verifier`, of published shape if that is."""
    from transformers import AutoConfig

    from plugin.training.draft.shape import new_shape

    shape = new_shape(family, AutoConfig.from_pretrained(verifier).decoder, mask_token_id=4)
    config = shape.to_json(str(verifier), verifier_softcap=None, dtype="bfloat16")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return folder
