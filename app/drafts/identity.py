"""What is loaded: the answer of GET /drafts, and the labels of `t5gemma_draft_info`.

It is made from the checkpoint's facts before the engine starts and never changes afterwards, so every place
that speaks of the draft (routes, gauges, page, log) speaks of the same one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

from app.settings import Settings
from plugin.drafts.checkpoint import Checkpoints


@dataclass(frozen=True, slots=True)
class VerifierIdentity:
    """The target model. Lengths in tokens; `dtype` is what was asked for (auto: decided by the device)."""

    name: str
    path: str
    architecture: str
    hidden_size: int
    vocab_size: int
    num_encoder_layers: int
    num_decoder_layers: int
    sliding_window: int | None
    max_positions: int
    checkpoint_dtype: str


@dataclass(frozen=True, slots=True)
class Identity:
    """What is loaded; without a draft `family` and all that follows from it are None.

    `k` draft tokens are proposed per step; `default_k` is what the checkpoint names and `block_size` (1 +
    trained K) what it was trained on. `lm_head` and `embedding` say whether the draft has its `own` or
    `shared` the verifier's.
    """

    served_model_names: tuple[str, ...]
    verifier: VerifierIdentity
    dtype: str
    max_model_len: int
    max_encoder_len: int
    max_num_seqs: int
    family: str | None = None
    draft_class: str | None = None
    draft: str | None = None
    draft_path: str | None = None
    k: int | None = None
    default_k: int | None = None
    block_size: int | None = None
    num_draft_layers: int | None = None
    draft_hidden_size: int | None = None
    aux_layer_ids: tuple[int, ...] | None = None
    mask_token_id: int | None = None
    draft_vocab_size: int | None = None
    lm_head: str | None = None
    embedding: str | None = None
    sample_from_anchor: bool | None = None
    markov_head_type: str | None = None
    markov_rank: int | None = None
    configured_verifier: str | None = None

    @classmethod
    def of(cls, checkpoints: Checkpoints, settings: Settings) -> Self:
        """Identity of what `resolve` found under these settings; SettingsError when a length does not fit."""
        facts, draft = checkpoints.verifier, checkpoints.draft
        verifier = VerifierIdentity(
            name=facts.name,
            path=facts.path,
            architecture=facts.architecture,
            hidden_size=facts.hidden_size,
            vocab_size=facts.vocab_size,
            num_encoder_layers=facts.num_encoder_layers,
            num_decoder_layers=facts.num_decoder_layers,
            sliding_window=facts.sliding_window,
            max_positions=facts.max_positions,
            checkpoint_dtype=facts.dtype,
        )
        max_model_len = settings.decoder_positions(facts.max_positions)
        max_encoder_len = settings.encoder_tokens(facts.max_positions)
        settings.check_batched_tokens(max_model_len, max_encoder_len)
        served = (draft or facts).name.rsplit("/", 1)[-1]
        common: dict[str, Any] = {
            "served_model_names": settings.served_model_name or (served,),
            "verifier": verifier,
            "dtype": settings.dtype,
            "max_model_len": max_model_len,
            "max_encoder_len": max_encoder_len,
            "max_num_seqs": settings.max_num_seqs,
        }
        if draft is None:
            return cls(**common)
        return cls(
            **common,
            family=draft.family,
            draft_class=draft.architecture,
            draft=draft.name,
            draft_path=draft.path,
            k=checkpoints.k,
            default_k=draft.default_k,
            block_size=draft.block_size,
            num_draft_layers=draft.num_layers,
            draft_hidden_size=draft.hidden_size,
            aux_layer_ids=draft.aux_layer_ids,
            mask_token_id=draft.mask_token_id,
            draft_vocab_size=draft.draft_vocab_size,
            lm_head="own" if draft.has_own_head else "shared",
            embedding="own" if draft.has_own_embedding else "shared",
            sample_from_anchor=draft.sample_from_anchor,
            markov_head_type=draft.markov_head_type,
            markov_rank=draft.markov_rank,
            configured_verifier=draft.verifier_name,
        )

    @property
    def model_name(self) -> str:
        """The id that responses and metric labels carry."""
        return self.served_model_names[0]

    def to_json(self) -> dict[str, Any]:
        """JSON-ready dictionary with the fields' own names."""
        return asdict(self)
