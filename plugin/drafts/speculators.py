"""A Speculators draft's config.json as facts. The family comes from it, never from a folder's name."""

from __future__ import annotations

import json

from plugin.drafts.facts import DraftFacts
from plugin.drafts.families import FAMILIES, MARKOV_HEAD_TYPES, VERIFIER_ARCHITECTURE
from plugin.drafts.fields import Fields
from plugin.drafts.location import Location
from plugin.drafts.stack import check_epsilon, check_layer_types, check_rope, max_positions, num_layers

_SERVED: dict[str, bool | int | None] = {
    "attention_bias": False,
    "mlp_bias": False,
    "is_causal": None,
    "is_neox_style": True,
    "logit_scale": 1,
    "use_aux_hidden_state": True,
    "add_swa_attention_sink_bias": False,
    "eagle_config": None,
    "quantization_config": None,
    "rope_scaling": None,
    "partial_rotary_factor": 1,
}
"""Keys of `transformer_layer_config` that vLLM's layers read, each with the one value that T5Gemma 2's drafts are
trained with (None: unset). With another the layers would be different ones, and nothing but acceptance would show it.
"""


def is_draft(config: Fields) -> bool:
    """Whether a config.json is a Speculators draft's (and not a verifier's)."""
    return "speculators_config" in config or "speculators_model_type" in config


def draft_facts(config: Fields, location: Location) -> DraftFacts:
    """Facts of a draft's config. The flags `has_own_*` are None; the weights decide (`tensors.check_draft`).

    Raises:
        CheckpointError: the dotted key that is missing, wrong or contradicts another.
    """
    if not is_draft(config):
        raise config.error("speculators_config", f"{location.name} is no Speculators draft")
    family = _family(config)
    speculators = config.object("speculators_config")
    algorithm = speculators.optional_text("algorithm")
    if algorithm is not None and algorithm != family:
        raise speculators.error("algorithm", f"contradicts speculators_model_type {family!r}")
    verifier = speculators.object("verifier")
    if VERIFIER_ARCHITECTURE not in verifier.texts("architectures"):
        raise verifier.error("architectures", f"the draft is not for {VERIFIER_ARCHITECTURE}")
    layers = config.object("transformer_layer_config")
    proposal = speculators.first_object("proposal_methods", "speculative_tokens")
    vocab_size, hidden_size = layers.integer("vocab_size"), layers.integer("hidden_size")
    markov = family == "dspark"
    facts = DraftFacts(
        path=location.path,
        name=location.name,
        family=family,
        architecture=FAMILIES[family].speculators_class,
        default_k=proposal.integer("speculative_tokens"),
        block_size=config.integer("block_size", at_least=2),
        aux_layer_ids=config.integers("aux_hidden_state_layer_ids"),
        mask_token_id=config.integer("mask_token_id", at_least=0),
        vocab_size=vocab_size,
        draft_vocab_size=config.integer("draft_vocab_size", default=vocab_size),
        num_layers=num_layers(layers),
        hidden_size=hidden_size,
        target_hidden_size=config.integer("target_hidden_size", default=hidden_size),
        intermediate_size=layers.integer("intermediate_size"),
        num_attention_heads=layers.integer("num_attention_heads"),
        num_key_value_heads=layers.integer("num_key_value_heads"),
        head_dim=layers.integer("head_dim"),
        has_own_head=None,
        has_own_embedding=None,
        sample_from_anchor=config.flag("sample_from_anchor", default=False),
        markov_head_type=config.one_of("markov_head_type", MARKOV_HEAD_TYPES) if markov else None,
        markov_rank=config.integer("markov_rank") if markov else None,
        confidence_head=markov and config.flag("enable_confidence_head", default=False),
        confidence_head_with_markov=markov and config.flag("confidence_head_with_markov", default=False),
        verifier_name=verifier.optional_text("name_or_path"),
        max_positions=max_positions(layers),
    )
    if facts.default_k > facts.max_k:
        raise proposal.error(
            "speculative_tokens", f"block_size {facts.block_size} allows at most {facts.max_k}"
        )
    _check(facts, config, layers)
    return facts


def _family(config: Fields) -> str:
    family = config.one_of("speculators_model_type", FAMILIES)
    name = FAMILIES[family].speculators_class
    if config.texts("architectures") != (name,):
        raise config.error("architectures", f"must be [{name!r}], as speculators_model_type is {family!r}")
    return family


def _check(facts: DraftFacts, config: Fields, layers: Fields) -> None:
    """Contradictions inside one config."""
    aux, heads = facts.aux_layer_ids, facts.num_key_value_heads
    whole = f"transformer_layer_config.vocab_size {facts.vocab_size}"
    if list(aux) != sorted(set(aux)):
        raise config.error("aux_hidden_state_layer_ids", "must be ascending without repetition")
    if facts.mask_token_id >= facts.vocab_size:
        raise config.error("mask_token_id", f"must be below {whole}")
    if facts.draft_vocab_size > facts.vocab_size:
        raise config.error("draft_vocab_size", f"is above {whole}")
    if facts.sample_from_anchor and facts.family != "dspark":
        raise config.error(
            "sample_from_anchor", f"only dspark predicts from the anchor, this is {facts.family}"
        )
    if facts.num_attention_heads % heads:
        raise layers.error("num_attention_heads", f"must be a multiple of {heads} key/value heads")
    config.flag("sliding_window_non_causal", default=False)
    check_layer_types(layers, facts.num_layers)
    check_epsilon(layers)
    check_rope(layers.object("rope_parameters"), layers, facts.max_positions)
    layers.one_of("hidden_act", ("silu",))
    layers.optional_integer("sliding_window")
    for key, served in _SERVED.items():
        value = layers.values.get(key)
        if value is not None and (value != served or isinstance(value, bool) != isinstance(served, bool)):
            raise layers.error(key, "unset it" if served is None else f"must be {json.dumps(served)}")
