"""What the configs of draft and verifier alike say of a stack of layers, checked before anything is loaded.

vLLM takes most of these keys as they stand: a wrong type ends the engine minutes later without naming file or key, and
a wrong value (rope factor 0, a negative epsilon) is served with a draft that is never right.
"""

from __future__ import annotations

from collections.abc import Collection

from plugin.drafts.fields import Fields

LAYER_TYPES = ("full_attention", "sliding_attention")

_MAX_LAYERS = 1024
_MAX_ROPE_ROWS = 2**22
"""Positions times factor: the rows of the table of angles, which vLLM computes at once."""


def num_layers(stack: Fields) -> int:
    """The stack's depth."""
    return stack.integer("num_hidden_layers", at_most=_MAX_LAYERS)


def max_positions(stack: Fields) -> int:
    """The stack's positions, tokens."""
    return stack.integer("max_position_embeddings", at_most=_MAX_ROPE_ROWS)


def check_epsilon(stack: Fields) -> None:
    """Refuse an `rms_norm_eps` that is no small positive number."""
    stack.number("rms_norm_eps", low=0, above=True, at_most=0.1)


def check_rope(rope: Fields, stack: Fields, positions: int, theta: bool = True) -> None:
    """Refuse rotary angles other than the two kinds that T5Gemma 2 and its drafts are trained with.

    Args:
        rope: the object that holds `rope_type`, `rope_theta` and, for linear scaling, `factor`.
        stack: where `rope_theta` may stand instead.
        positions: of the stack, tokens.
        theta: whether `rope_theta` must be given at all.
    """
    kind = rope.one_of("rope_type", ("default", "linear"))
    given = rope if "rope_theta" in rope or "rope_theta" not in stack else stack
    if theta or "rope_theta" in given:
        given.number("rope_theta", low=1, above=True, at_most=1e12)
    if kind == "linear":
        factor = rope.number("factor", low=1, at_most=_MAX_ROPE_ROWS)
        if factor * positions > _MAX_ROPE_ROWS:
            raise rope.error("factor", f"times max_position_embeddings {positions} is above {_MAX_ROPE_ROWS}")
    for key in ("partial_rotary_factor", "rope_dim", "mrope_section"):
        if rope.values.get(key) not in (None, 1.0):
            raise rope.error(key, "every dimension of a head is rotated")


def check_layer_types(stack: Fields, depth: int) -> None:
    """Refuse attention types that there are not, and sliding layers without a `sliding_window`."""
    if stack.values.get("layer_types") is None:
        return
    types = stack.texts("layer_types")
    if len(types) != depth:
        raise stack.error("layer_types", f"must have num_hidden_layers {depth} entries")
    if unknown := set(types) - set(LAYER_TYPES):
        raise stack.error("layer_types", f"{sorted(unknown)[0]!r} is none of {', '.join(LAYER_TYPES)}")
    if "sliding_attention" in types:
        stack.integer("sliding_window")


def check_token_ids(config: Fields, keys: Collection[str], vocab_size: int) -> None:
    """Refuse token ids outside the vocabulary; one that is absent or null stays so."""
    for key in keys:
        value = config.values.get(key)
        ids = value if isinstance(value, list) else [value]
        if value is not None and not all(type(one) is int and 0 <= one < vocab_size for one in ids):
            raise config.error(key, f"must be a token id of 0 ... {vocab_size - 1}")
