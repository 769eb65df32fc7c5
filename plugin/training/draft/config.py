"""A draft's shape, and its config.json in Speculators format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from plugin.drafts.families import FAMILIES, VERIFIER_ARCHITECTURE, Family, MarkovHeadType

SPECULATORS_VERSION: Final = "0.3.0"
PUBLISHED_WINDOW: Final = 2048
_DECODER_FIELDS: Final = (
    "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "max_position_embeddings", "rms_norm_eps",
)  # fmt: skip
"""What a draft has of its verifier's decoder."""
_LAYER_FIELDS: Final = (*_DECODER_FIELDS, "num_hidden_layers", "rope_parameters")
_BLOCK_FIELDS: Final = ("sample_from_anchor", "sliding_window_non_causal")


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """Everything that decides a draft's tensors and forward pass. Sizes in elements, lengths in tokens.

    `aux_hidden_state_layer_ids` are 0-based decoder layers of the verifier, ascending. `sliding_layers` of the draft's
    own see `sliding_window` tokens, and of their block only what is before them unless `sliding_window_non_causal`.
    With `sample_from_anchor` every slot predicts the token after its own. It and the Markov and confidence fields
    matter to DSpark alone.
    """

    family: Family
    vocab_size: int
    draft_vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    aux_hidden_state_layer_ids: tuple[int, ...]
    mask_token_id: int
    rope_parameters: dict[str, Any]
    max_position_embeddings: int
    block_size: int = 8
    rms_norm_eps: float = 1e-6
    sliding_layers: tuple[int, ...] = ()
    sliding_window: int = PUBLISHED_WINDOW
    sliding_window_non_causal: bool = False
    sample_from_anchor: bool = False
    markov_rank: int = 256
    markov_head_type: MarkovHeadType = "vanilla"
    enable_confidence_head: bool = True
    confidence_head_with_markov: bool = True

    def __post_init__(self) -> None:
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        size, draft_size, mask = self.vocab_size, self.draft_vocab_size, self.mask_token_id
        rope_type = self.rope_parameters.get("rope_type")
        if self.family not in FAMILIES:
            raise ValueError(f"family: {self.family!r} is not one of {', '.join(FAMILIES)}")
        if self.block_size < 2:
            raise ValueError(
                f"block_size: {self.block_size} leaves no slot to predict, it must be at least 2"
            )
        if not 0 < draft_size <= size:
            raise ValueError(f"draft_vocab_size: {draft_size} is not between 1 and vocab_size {size}")
        if heads % kv_heads:
            raise ValueError(f"num_attention_heads: {heads} is no multiple of num_key_value_heads {kv_heads}")
        if rope_type not in ("default", "linear"):
            raise ValueError(f"rope_type: {rope_type!r} is neither 'default' nor 'linear'")
        if not 0 <= mask < size:
            raise ValueError(f"mask_token_id: {mask} is outside the vocabulary of {size}")
        if self.sample_from_anchor and self.family != "dspark":
            raise ValueError(
                f"sample_from_anchor: only dspark samples from the anchor, this is {self.family}"
            )
        if wrong := [layer for layer in self.sliding_layers if not 0 <= layer < self.num_hidden_layers]:
            raise ValueError(
                f"sliding layers: {wrong[0]} is none of the draft's {self.num_hidden_layers} layers"
            )
        for name in ("intermediate_size", "num_hidden_layers", "markov_rank", "sliding_window"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is below 1")

    @property
    def ahead(self) -> int:
        """How far beyond its own position a slot predicts: 0, or 1 where it samples from the anchor."""
        return int(self.sample_from_anchor)

    @property
    def first_slot(self) -> int:
        """The first slot that predicts."""
        return 1 - self.ahead

    @property
    def draft_length(self) -> int:
        """K of a whole block."""
        return self.block_size - self.first_slot

    @property
    def num_aux_layers(self) -> int:
        """How many verifier layers the draft reads."""
        return len(self.aux_hidden_state_layer_ids)

    @classmethod
    def for_decoder(cls, family: Family, decoder: Any, **fields: Any) -> DraftConfig:
        """A draft with the widths, heads and full-attention rope of a T5Gemma 2 `decoder` config."""
        inherited = {name: getattr(decoder, name) for name in _DECODER_FIELDS}
        inherited["rope_parameters"] = dict(decoder.rope_parameters["full_attention"])
        return cls(family=family, **{**inherited, **fields})

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> DraftConfig:
        """The shape that a checkpoint's config.json describes.

        Raises `KeyError` naming a field it lacks, and `ValueError` for a shape that cannot be.
        """
        layers = config["transformer_layer_config"]
        types = layers.get("layer_types") or []
        own_keys = (name for family in FAMILIES.values() for name in family.own_keys)
        return cls(
            family=config["speculators_model_type"],
            draft_vocab_size=config["draft_vocab_size"],
            aux_hidden_state_layer_ids=tuple(config["aux_hidden_state_layer_ids"]),
            mask_token_id=config["mask_token_id"],
            block_size=config["block_size"],
            **{name: layers[name] for name in _LAYER_FIELDS},
            sliding_layers=tuple(i for i, kind in enumerate(types) if kind == "sliding_attention"),
            sliding_window=layers.get("sliding_window") or PUBLISHED_WINDOW,
            **{name: config[name] for name in (*_BLOCK_FIELDS, *own_keys) if config.get(name) is not None},
        )

    def to_json(self, verifier: str, verifier_softcap: float | None, dtype: str) -> dict[str, Any]:
        """The config.json of a checkpoint. `verifier` is its hub id, or a path relative to the checkpoint."""
        config: dict[str, Any] = {
            "architectures": [FAMILIES[self.family].speculators_class],
            "auto_map": {"": f"config.{FAMILIES[self.family].config_class}"},
            "aux_hidden_state_layer_ids": list(self.aux_hidden_state_layer_ids),
            "block_size": self.block_size,
            "draft_vocab_size": self.draft_vocab_size,
            "dtype": dtype,
            "mask_token_id": self.mask_token_id,
            # Written out: `speculators` takes a DSpark draft that does not say it for one that samples from the anchor.
            **{name: getattr(self, name) for name in _BLOCK_FIELDS},
            "speculators_config": {
                "algorithm": self.family,
                "default_proposal_method": "greedy",
                "proposal_methods": [
                    {
                        "accept_tolerance": 0.0,
                        "proposal_type": "greedy",
                        "speculative_tokens": self.draft_length,
                        "verifier_accept_k": 1,
                    }
                ],
                "verifier": {"architectures": [VERIFIER_ARCHITECTURE], "name_or_path": verifier},
            },
            "speculators_model_type": self.family,
            "speculators_version": SPECULATORS_VERSION,
            "target_hidden_size": None,
            "tie_word_embeddings": False,
            "transformer_layer_config": {
                **{name: getattr(self, name) for name in _LAYER_FIELDS},
                "architectures": [VERIFIER_ARCHITECTURE],
                "model_type": "llama",
                "attention_bias": False,
                "attention_dropout": 0.0,
                "mlp_bias": False,
                "bos_token_id": 1,
                "eos_token_id": 2,
                "pad_token_id": None,
                "hidden_act": "silu",
                "initializer_range": 0.02,
                "layer_types": [
                    "sliding_attention" if layer in self.sliding_layers else "full_attention"
                    for layer in range(self.num_hidden_layers)
                ],
                "pretraining_tp": 1,
                "rope_theta": self.rope_parameters["rope_theta"],
                "sliding_window": self.sliding_window,
                "tie_word_embeddings": False,
                "use_cache": True,
                "verifier_final_logit_softcapping": verifier_softcap,
                "verifier_hidden_states_are_normalized": True,
                "verifier_is_encoder_decoder": True,
                "verifier_model_type": "t5gemma2",
            },
        }
        return config | {name: getattr(self, name) for name in FAMILIES[self.family].own_keys}
