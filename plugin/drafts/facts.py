"""What a checkpoint is, as typed facts: the one vocabulary of loader, engine arguments, /drafts and error texts."""

from __future__ import annotations

from dataclasses import dataclass


class CheckpointError(ValueError):
    """A checkpoint cannot be served; the message is one line naming the file, the key and the values."""


@dataclass(frozen=True, slots=True)
class VerifierFacts:
    """A T5Gemma 2 checkpoint. `path` is a folder, or a hub id until `fetch`; lengths in tokens.

    `sliding_window` is None when no decoder layer slides; `dtype` is the stored one, "unknown" if not stated.
    """

    path: str
    name: str
    architecture: str
    hidden_size: int
    vocab_size: int
    num_encoder_layers: int
    num_decoder_layers: int
    sliding_window: int | None
    max_positions: int
    dtype: str

    @property
    def config_file(self) -> str:
        """The config.json, for messages."""
        return f"{self.path}/config.json"


@dataclass(frozen=True, slots=True)
class DraftFacts:
    """A Speculators draft. `path` is a folder, or a hub id until `fetch`.

    `default_k` is the config's `speculative_tokens`. `aux_layer_ids` are zero-based decoder layers, ascending.
    `has_own_embedding` and `has_own_head` come from the weights, and are None while these are not fetched.
    `verifier_name` is the config's `name_or_path` as written, None when it has none. `max_positions` is in tokens.
    """

    path: str
    name: str
    family: str
    architecture: str
    default_k: int
    block_size: int
    aux_layer_ids: tuple[int, ...]
    mask_token_id: int
    vocab_size: int
    draft_vocab_size: int
    num_layers: int
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    has_own_head: bool | None
    has_own_embedding: bool | None
    sample_from_anchor: bool
    markov_head_type: str | None
    markov_rank: int | None
    confidence_head: bool
    confidence_head_with_markov: bool
    verifier_name: str | None
    max_positions: int

    @property
    def config_file(self) -> str:
        """The config.json, for messages."""
        return f"{self.path}/config.json"

    @property
    def max_k(self) -> int:
        """Largest K: every slot but the anchor's, and that too when it predicts (`sample_from_anchor`)."""
        return self.block_size - (0 if self.sample_from_anchor else 1)


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """What will be served: a verifier, and with a draft the K (draft tokens per step) to run it at."""

    verifier: VerifierFacts
    draft: DraftFacts | None
    k: int | None
