"""What is loaded: the answer of GET /drafts, and the labels of `t5gemma_draft_info`.

It is made from the checkpoints' facts before the engine starts, so every place that speaks of the draft (routes,
gauges, log) speaks of the same one. The weights of what lies on the hub are known once the engine has fetched them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from app.config.lengths import lengths
from app.config.settings import Settings, SettingsError, variable
from plugin.drafts.checkpoint import Checkpoints, DraftFacts, VerifierFacts

DRAFT_FACTS = {
    "family": "family",
    "draft_class": "architecture",
    "draft": "name",
    "draft_path": "path",
    "default_k": "default_k",
    "block_size": "block_size",
    "num_draft_layers": "num_layers",
    "draft_hidden_size": "hidden_size",
    "aux_layer_ids": "aux_layer_ids",
    "mask_token_id": "mask_token_id",
    "draft_vocab_size": "draft_vocab_size",
    "sample_from_anchor": "sample_from_anchor",
    "markov_head_type": "markov_head_type",
    "markov_rank": "markov_rank",
    "configured_verifier": "verifier_name",
}
"""Field of GET /drafts -> field of `DraftFacts`; without a draft each is null."""

_WHOSE = {True: "own", False: "shared", None: "unknown"}


@dataclass(frozen=True, slots=True)
class Identity:
    """The checkpoints that are served, under which names and within which limits. Lengths in tokens; `dtype` is what
    was asked for (auto: decided by the device).
    """

    checkpoints: Checkpoints
    served_model_names: tuple[str, ...]
    dtype: str
    max_model_len: int
    max_encoder_len: int
    max_num_seqs: int

    @classmethod
    def of(cls, checkpoints: Checkpoints, settings: Settings) -> Self:
        """Identity of what `resolve` found under these settings.

        Raises:
            SettingsError: a length does not fit the verifier, the draft, or one engine step.
        """
        max_model_len, max_encoder_len = lengths(settings, checkpoints.verifier.max_positions)
        _check_draft(checkpoints, max_model_len)
        _check_limits_of_k(checkpoints.draft, settings)
        served = (checkpoints.draft or checkpoints.verifier).name.rsplit("/", 1)[-1]
        return cls(
            checkpoints=checkpoints,
            served_model_names=settings.served_model_name or (served,),
            dtype=settings.dtype,
            max_model_len=max_model_len,
            max_encoder_len=max_encoder_len,
            max_num_seqs=settings.max_num_seqs,
        )

    def under(self, served_model_names: tuple[str, ...]) -> Identity:
        """The same under other names."""
        return replace(self, served_model_names=served_model_names)

    @property
    def model_name(self) -> str:
        """The id that responses and metric labels carry."""
        return self.served_model_names[0]

    @property
    def verifier(self) -> VerifierFacts:
        return self.checkpoints.verifier

    @property
    def draft(self) -> DraftFacts | None:
        return self.checkpoints.draft

    @property
    def k(self) -> int | None:
        """Draft tokens per step; None without a draft."""
        return self.checkpoints.k

    def to_json(self) -> dict[str, Any]:
        """The fields of GET /drafts, JSON-ready. `lm_head` and `embedding` say whether the draft has its `own`, is
        `shared` with the verifier's, or is not fetched: `unknown`.
        """
        draft = self.draft
        fields = asdict(self)
        del fields["checkpoints"]
        verifier = asdict(self.verifier)
        verifier["checkpoint_dtype"] = verifier.pop("dtype")
        return {
            **fields,
            "verifier": verifier,
            "k": self.k,
            **{key: draft and getattr(draft, fact) for key, fact in DRAFT_FACTS.items()},
            "lm_head": draft and _WHOSE[draft.has_own_head],
            "embedding": draft and _WHOSE[draft.has_own_embedding],
        }


def _check_draft(checkpoints: Checkpoints, max_model_len: int) -> None:
    """Refuse a draft that would fall silent before a request's end, or whose block no request can hold."""
    draft, k = checkpoints.draft, checkpoints.k
    if draft is None or k is None:
        return
    served = f"{variable('max_model_len')} is {max_model_len}"
    if draft.max_positions < max_model_len:
        raise SettingsError(
            f"{draft.config_file}: transformer_layer_config.max_position_embeddings is {draft.max_positions}, but"
            f" {served}: the draft knows no positions beyond its own; lower {variable('max_model_len')}"
        )
    if k >= max_model_len:
        raise SettingsError(
            f"K is {k} (block_size {draft.block_size} in {draft.config_file}), but {served}: lower {variable('k')}"
        )


def _check_limits_of_k(draft: DraftFacts | None, settings: Settings) -> None:
    """Refuse a floor or a ceiling of K that lies outside of the block."""
    for field in ("k_floor", "k_ceiling"):
        asked = getattr(settings, field)
        if draft is not None and asked is not None and asked > draft.max_k:
            raise SettingsError(
                f"{variable(field)}={asked} is above {draft.max_k}: block_size is {draft.block_size} in"
                f" {draft.config_file}"
            )
