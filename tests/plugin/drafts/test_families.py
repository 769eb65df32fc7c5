"""The registry of families, against the published names and numbers written out by hand."""

from __future__ import annotations

import pkgutil

import pytest

from plugin.drafts.families import FAMILIES, MARKOV_HEAD_TYPES

NAMES = {
    "dflash": ("DFlashDraftModel", "DFlashSpeculatorConfig", "T5Gemma2DFlashDraftModel"),
    "dspark": ("DSparkDraftModel", "DSparkSpeculatorConfig", "T5Gemma2DSparkDraftModel"),
    "dflare": ("DFlareDraftModel", "DFlareSpeculatorConfig", "T5Gemma2DFlareDraftModel"),
}
PUBLISHED = {
    "dflash": (5, (2, 7, 13, 18, 21)),
    "dspark": (5, (2, 7, 13, 18, 21)),
    "dflare": (6, (2, 5, 8, 11, 14, 17, 20, 22)),
}


def test_names_and_published_depths() -> None:
    facts = FAMILIES.values()
    assert {one.name: (one.speculators_class, one.config_class, one.architecture) for one in facts} == NAMES
    assert {one.name: (one.published.num_layers, one.published.aux_layer_ids) for one in facts} == PUBLISHED
    assert list(FAMILIES) == list(NAMES)
    assert MARKOV_HEAD_TYPES == ("vanilla", "gated", "rnn")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_model_is_a_class_of_the_architectures_name(family: str) -> None:
    facts = FAMILIES[family]
    assert pkgutil.resolve_name(facts.model).__name__ == facts.architecture
