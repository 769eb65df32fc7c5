"""A Speculators draft's config.json as facts. The family comes from it, never from a folder's name."""

from __future__ import annotations

from plugin.drafts.facts import CheckpointError, DraftFacts
from plugin.drafts.families import FAMILIES, MARKOV_HEAD_TYPES, VERIFIER_ARCHITECTURE
from plugin.drafts.fields import Fields


def is_draft(config: Fields) -> bool:
    """Whether a config.json is a Speculators draft's (and not a verifier's)."""
    return "speculators_config" in config or "speculators_model_type" in config


def draft_facts(config: Fields, path: str, name: str) -> DraftFacts:
    """Facts of a draft's config; CheckpointError naming the dotted key that is missing, wrong or contradicts
    another.

    The flags `has_own_*` are those of the published layout; the weights decide (`tensors.check_draft`).
    """
    family = _family(config)
    speculators = config.object("speculators_config")
    algorithm = speculators.optional_text("algorithm")
    if algorithm is not None and algorithm != family:
        raise speculators.error("algorithm", f"contradicts speculators_model_type {family!r}")
    _check_verifier_architecture(speculators)
    layers = config.object("transformer_layer_config")
    vocab_size = layers.integer("vocab_size")
    markov = family == "dspark"
    facts = DraftFacts(
        path=path,
        name=name,
        family=family,
        architecture=FAMILIES[family].speculators_class,
        default_k=speculators.first_object("proposal_methods", "speculative_tokens").integer(
            "speculative_tokens"
        ),
        block_size=config.integer("block_size", at_least=2),
        aux_layer_ids=config.integers("aux_hidden_state_layer_ids"),
        mask_token_id=config.integer("mask_token_id", at_least=0),
        vocab_size=vocab_size,
        draft_vocab_size=config.integer("draft_vocab_size", default=vocab_size),
        num_layers=layers.integer("num_hidden_layers"),
        hidden_size=layers.integer("hidden_size"),
        target_hidden_size=config.integer("target_hidden_size", default=layers.integer("hidden_size")),
        intermediate_size=layers.integer("intermediate_size"),
        num_attention_heads=layers.integer("num_attention_heads"),
        num_key_value_heads=layers.integer("num_key_value_heads"),
        head_dim=layers.integer("head_dim"),
        has_own_head=True,
        has_own_embedding=True,
        sample_from_anchor=config.flag("sample_from_anchor", default=False),
        markov_head_type=_markov_head_type(config) if markov else None,
        markov_rank=config.integer("markov_rank") if markov else None,
        confidence_head=markov and config.flag("enable_confidence_head", default=False),
        confidence_head_with_markov=markov and config.flag("confidence_head_with_markov", default=False),
        verifier_name=speculators.object("verifier").optional_text("name_or_path"),
    )
    _check(facts, config, layers)
    return facts


def _family(config: Fields) -> str:
    family = config.text("speculators_model_type")
    if family not in FAMILIES:
        raise config.error("speculators_model_type", f"must be one of {', '.join(FAMILIES)}")
    name = FAMILIES[family].speculators_class
    if config.texts("architectures") != (name,):
        raise config.error("architectures", f"must be [{name!r}], as speculators_model_type is {family!r}")
    return family


def _markov_head_type(config: Fields) -> str:
    kind = config.text("markov_head_type")
    if kind not in MARKOV_HEAD_TYPES:
        raise config.error("markov_head_type", f"must be one of {', '.join(MARKOV_HEAD_TYPES)}")
    return kind


def _check_verifier_architecture(speculators: Fields) -> None:
    verifier = speculators.object("verifier")
    if VERIFIER_ARCHITECTURE not in verifier.texts("architectures"):
        raise verifier.error("architectures", f"the draft is not for {VERIFIER_ARCHITECTURE}")


def _check(facts: DraftFacts, config: Fields, layers: Fields) -> None:
    """Contradictions inside one config."""
    aux = facts.aux_layer_ids
    if list(aux) != sorted(set(aux)):
        raise config.error("aux_hidden_state_layer_ids", "must be ascending without repetition")
    if facts.mask_token_id >= facts.vocab_size:
        raise config.error(
            "mask_token_id", f"must be below transformer_layer_config.vocab_size {facts.vocab_size}"
        )
    if facts.draft_vocab_size > facts.vocab_size:
        raise config.error(
            "draft_vocab_size", f"is above transformer_layer_config.vocab_size {facts.vocab_size}"
        )
    if facts.default_k > facts.max_k:
        raise CheckpointError(
            f"{config.file}: speculators_config.proposal_methods[0].speculative_tokens is {facts.default_k};"
            f" block_size {facts.block_size} allows at most {facts.max_k}"
        )
    if facts.sample_from_anchor and facts.family != "dspark":
        raise config.error(
            "sample_from_anchor", f"only dspark predicts from the anchor, this is {facts.family}"
        )
    if facts.num_attention_heads % facts.num_key_value_heads:
        raise layers.error(
            "num_attention_heads", f"must be a multiple of {facts.num_key_value_heads} key/value heads"
        )
    types = layers.values.get("layer_types")
    if types is not None and len(layers.texts("layer_types")) != facts.num_layers:
        raise layers.error("layer_types", f"must have num_hidden_layers {facts.num_layers} entries")
