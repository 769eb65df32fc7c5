"""A draft's shape, and its config.json in Speculators format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plugin.drafts.families import FAMILIES, Family, MarkovHeadType


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """Everything that decides a draft's tensors and forward pass. Sizes in elements, lengths in tokens.

    `aux_hidden_state_layer_ids` are 0-based decoder layers of the verifier, ascending. The Markov and confidence
    fields matter to DSpark alone.
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
    markov_rank: int = 256
    markov_head_type: MarkovHeadType = "vanilla"
    enable_confidence_head: bool = True
    confidence_head_with_markov: bool = True

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"family: {self.family!r} is not one of {', '.join(FAMILIES)}")
        if self.block_size < 2:
            raise ValueError(
                f"block_size: {self.block_size} leaves no slot to predict, it must be at least 2"
            )
        if not 0 < self.draft_vocab_size <= self.vocab_size:
            raise ValueError(
                f"draft_vocab_size: {self.draft_vocab_size} is not between 1 and vocab_size {self.vocab_size}"
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads: {self.num_attention_heads} is no multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        if self.rope_parameters.get("rope_type") not in ("default", "linear"):
            raise ValueError(
                f"rope_type: {self.rope_parameters.get('rope_type')!r} is neither 'default' nor 'linear'"
            )
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise ValueError(
                f"mask_token_id: {self.mask_token_id} is outside the vocabulary of {self.vocab_size}"
            )

    @property
    def num_aux_layers(self) -> int:
        """How many verifier layers the draft reads."""
        return len(self.aux_hidden_state_layer_ids)

    @classmethod
    def for_decoder(cls, family: Family, decoder: Any, **fields: Any) -> DraftConfig:
        """A draft with the widths, heads and full-attention rope of a T5Gemma 2 `decoder` config."""
        rope = dict(decoder.rope_parameters["full_attention"])
        inherited = {
            "vocab_size": decoder.vocab_size,
            "hidden_size": decoder.hidden_size,
            "intermediate_size": decoder.intermediate_size,
            "num_attention_heads": decoder.num_attention_heads,
            "num_key_value_heads": decoder.num_key_value_heads,
            "head_dim": decoder.head_dim,
            "rms_norm_eps": decoder.rms_norm_eps,
            "max_position_embeddings": decoder.max_position_embeddings,
            "rope_parameters": rope,
        }
        return cls(family=family, **{**inherited, **fields})

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> DraftConfig:
        """The shape that a checkpoint's config.json describes.

        Raises `KeyError` naming a field it lacks, and `ValueError` for the block layout that this code does not train.
        """
        if config.get("sample_from_anchor"):
            raise ValueError("sample_from_anchor is true: only blocks of 1 + K slots are trained")
        layer = config["transformer_layer_config"]
        same = (
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "head_dim", "rope_parameters", "max_position_embeddings", "rms_norm_eps",
        )  # fmt: skip
        optional = (
            "markov_rank",
            "markov_head_type",
            "enable_confidence_head",
            "confidence_head_with_markov",
        )
        return cls(
            family=config["speculators_model_type"],
            draft_vocab_size=config["draft_vocab_size"],
            aux_hidden_state_layer_ids=tuple(config["aux_hidden_state_layer_ids"]),
            mask_token_id=config["mask_token_id"],
            block_size=config["block_size"],
            **{name: layer[name] for name in same},
            **{name: config[name] for name in optional if name in config},
        )

    def to_json(
        self, verifier: str, verifier_softcap: float | None, dtype: str, version: str
    ) -> dict[str, Any]:
        """The config.json of a checkpoint. `verifier` is its hub id, or a path relative to the checkpoint."""
        layers = self.num_hidden_layers
        config: dict[str, Any] = {
            "architectures": [FAMILIES[self.family].speculators_class],
            "auto_map": {"": f"config.{FAMILIES[self.family].config_class}"},
            "aux_hidden_state_layer_ids": list(self.aux_hidden_state_layer_ids),
            "block_size": self.block_size,
            "draft_vocab_size": self.draft_vocab_size,
            "dtype": dtype,
            "mask_token_id": self.mask_token_id,
            "sliding_window_non_causal": False,
            "speculators_config": {
                "algorithm": self.family,
                "default_proposal_method": "greedy",
                "proposal_methods": [
                    {
                        "accept_tolerance": 0.0,
                        "proposal_type": "greedy",
                        "speculative_tokens": self.block_size - 1,
                        "verifier_accept_k": 1,
                    }
                ],
                "verifier": {
                    "architectures": ["T5Gemma2ForConditionalGeneration"],
                    "name_or_path": verifier,
                },
            },
            "speculators_model_type": self.family,
            "speculators_version": version,
            "target_hidden_size": None,
            "tie_word_embeddings": False,
            "transformer_layer_config": {
                "architectures": ["T5Gemma2ForConditionalGeneration"],
                "model_type": "llama",
                "attention_bias": False,
                "attention_dropout": 0.0,
                "mlp_bias": False,
                "bos_token_id": 1,
                "eos_token_id": 2,
                "pad_token_id": None,
                "head_dim": self.head_dim,
                "hidden_act": "silu",
                "hidden_size": self.hidden_size,
                "intermediate_size": self.intermediate_size,
                "initializer_range": 0.02,
                "max_position_embeddings": self.max_position_embeddings,
                "num_attention_heads": self.num_attention_heads,
                "num_hidden_layers": layers,
                "num_key_value_heads": self.num_key_value_heads,
                "layer_types": ["full_attention"] * layers,
                "pretraining_tp": 1,
                "rms_norm_eps": self.rms_norm_eps,
                "rope_parameters": self.rope_parameters,
                "rope_theta": self.rope_parameters["rope_theta"],
                "sliding_window": 2048,
                "tie_word_embeddings": False,
                "use_cache": True,
                "verifier_final_logit_softcapping": verifier_softcap,
                "verifier_hidden_states_are_normalized": True,
                "verifier_is_encoder_decoder": True,
                "verifier_model_type": "t5gemma2",
                "vocab_size": self.vocab_size,
            },
        }
        if self.family == "dspark":
            config |= {
                "markov_rank": self.markov_rank,
                "markov_head_type": self.markov_head_type,
                "enable_confidence_head": self.enable_confidence_head,
                "confidence_head_with_markov": self.confidence_head_with_markov,
            }
        return config
