"""Which draft is made for a verifier: the published shapes, and their like for verifiers of other depths."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch

from plugin.drafts.families import FAMILIES, Family
from plugin.training.draft.config import DraftConfig
from plugin.training.draft.model import TrainableDraft
from plugin.training.draft.vocabulary import draft_vocabulary, vocabulary_tables

PUBLISHED_DEPTH: Final = 26
"""Decoder layers of the verifier that the published drafts were made for."""
PUBLISHED_DRAFT_VOCABULARY: Final = 32_000
PUBLISHED_BLOCK_SIZE: Final = 8


def draft_layers(family: Family, depth: int) -> int:
    """Layers of a draft for a decoder of `depth` layers: the published share of them, two at least."""
    return max(2, round(FAMILIES[family].published.num_layers * depth / PUBLISHED_DEPTH))


def aux_layers(family: Family, depth: int) -> tuple[int, ...]:
    """The decoder layers that a draft reads, at the published relative depths, ascending and each once."""
    published = FAMILIES[family].published.aux_layer_ids
    return tuple(sorted({layer * depth // PUBLISHED_DEPTH for layer in published}))


def new_shape(
    family: Family,
    decoder: Any,
    *,
    mask_token_id: int,
    layers: int | None = None,
    aux: tuple[int, ...] | None = None,
    draft_vocab_size: int | None = None,
    **fields: Any,
) -> DraftConfig:
    """The shape of a new draft for a verifier with the config `decoder`; what is not given is as published.

    Raises `ValueError` naming the field that does not fit the verifier.
    """
    depth = decoder.num_hidden_layers
    size = draft_vocab_size or min(PUBLISHED_DRAFT_VOCABULARY, decoder.vocab_size)
    chosen = aux or aux_layers(family, depth)
    if list(chosen) != sorted(set(chosen)) or not 0 <= chosen[0] <= chosen[-1] < depth:
        raise ValueError(f"aux layers: {list(chosen)} are not ascending layers of 0 ... {depth - 1}")
    return DraftConfig.for_decoder(
        family, decoder, draft_vocab_size=size, mask_token_id=mask_token_id,
        num_hidden_layers=layers or draft_layers(family, depth), aux_hidden_state_layer_ids=chosen, **fields,
    )  # fmt: skip


def new_draft(
    config: DraftConfig,
    table: torch.Tensor,
    responses: Iterable[Sequence[int]],
    seed: int,
    vocabulary: Sequence[int] | None = None,
) -> TrainableDraft:
    """A draft with fresh float32 weights drawn by `seed`, on the device of `table` [vocab_size, hidden].

    `table` is the verifier's raw embedding; the draft vocabulary are the tokens `vocabulary` or, without it, the most
    frequent ones of `responses`.
    """
    if vocabulary is None:
        t2d, d2t = draft_vocabulary(responses, config.vocab_size, config.draft_vocab_size)
    else:
        t2d, d2t = vocabulary_tables(vocabulary, config.vocab_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        draft = TrainableDraft(config, table.float().cpu(), t2d, d2t)
    return draft.to(table.device)
