"""A draft's config.json: what is refused; each refusal names the file, the dotted key and the value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plugin.drafts.checkpoint import CheckpointError, DraftFacts
from plugin.drafts.fields import Fields
from plugin.drafts.location import Location
from plugin.drafts.speculators import draft_facts, is_draft
from tests.plugin.drafts.folders import draft_config, verifier_config

METHODS = "speculators_config.proposal_methods[0].speculative_tokens"


def facts(config: dict[str, Any]) -> DraftFacts:
    return draft_facts(Fields(config, "d/config.json"), Location("d", None))


def refusal(config: dict[str, Any]) -> str:
    with pytest.raises(CheckpointError) as caught:
        facts(config)
    message = str(caught.value)
    assert "\n" not in message and message.startswith("d/config.json: ")
    return message


def test_facts_of_the_published_layout() -> None:
    found = facts(draft_config("dspark"))
    assert (found.family, found.architecture, found.default_k, found.block_size) == (
        "dspark",
        "DSparkDraftModel",
        7,
        8,
    )
    assert (found.aux_layer_ids, found.mask_token_id, found.draft_vocab_size) == ((0, 2, 4), 4, 12)
    assert (found.markov_head_type, found.markov_rank, found.confidence_head) == ("vanilla", 3, True)
    assert (found.verifier_name, found.sample_from_anchor, found.target_hidden_size) == (
        "../verifier",
        False,
        8,
    )
    assert facts(draft_config("dflare")).markov_rank is None


def test_draft_or_verifier() -> None:
    assert is_draft(Fields(draft_config(), "x"))
    assert not is_draft(Fields(verifier_config(), "x"))


@pytest.mark.parametrize(
    "methods",
    [None, [], [{}], "absent", *([{"speculative_tokens": bad}] for bad in (None, 0, -1, "7", 7.5, True))],
)
def test_speculative_tokens(methods: Any) -> None:
    """Missing or unusable number of draft tokens; "7" is refused too (D02)."""
    config = draft_config()
    if methods == "absent":
        del config["speculators_config"]["proposal_methods"]
    else:
        config["speculators_config"]["proposal_methods"] = methods
    assert METHODS in refusal(config)


@pytest.mark.parametrize("family", ["medusa", "DFlash", "eagle3", "", None, 5])
def test_unknown_families(family: Any) -> None:
    """Only dflash, dspark and dflare, in exactly this spelling (D04)."""
    config = draft_config("dflare")
    config["speculators_model_type"] = family
    message = refusal(config)
    assert "speculators_model_type" in message
    assert not family or "dflash, dspark, dflare" in message or family == 5


def test_dflare_is_accepted() -> None:
    """A family that vLLM itself does not know (D04)."""
    assert facts(draft_config("dflare")).architecture == "DFlareDraftModel"


@pytest.mark.parametrize(
    "architectures", [["DFlashDraftModel"], [], ["DSparkDraftModel", "DFlashDraftModel"], None]
)
def test_contradicting_architectures(architectures: Any) -> None:
    """Class and family contradict each other, or there is not exactly one class (D05)."""
    config = draft_config("dspark")
    config["architectures"] = architectures
    message = refusal(config)
    assert "architectures" in message
    if architectures is not None:
        assert "'dspark'" in message and "DSparkDraftModel" in message


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda c: c["speculators_config"].update(algorithm="dspark"),
            'speculators_config.algorithm is "dspark"',
        ),
        (lambda c: c.update(block_size=1), "block_size is 1"),
        (lambda c: c.update(block_size=4), "speculative_tokens is 7; block_size 4 allows at most 3"),
        (lambda c: c.update(mask_token_id=40), "mask_token_id is 40; must be below"),
        (lambda c: c.update(mask_token_id=-1), "mask_token_id is -1"),
        (lambda c: c.update(draft_vocab_size=41), "draft_vocab_size is 41"),
        (lambda c: c.update(aux_hidden_state_layer_ids=[]), "aux_hidden_state_layer_ids is []"),
        (lambda c: c.update(aux_hidden_state_layer_ids=[2, 0]), "ascending"),
        (lambda c: c.update(aux_hidden_state_layer_ids=[0, 0]), "ascending"),
        (lambda c: c.update(aux_hidden_state_layer_ids=[-1]), "aux_hidden_state_layer_ids is [-1]"),
        (lambda c: c.update(sample_from_anchor=True), "sample_from_anchor is true; only dspark"),
        (lambda c: c.update(sample_from_anchor="no"), 'sample_from_anchor is "no"'),
        (lambda c: c.pop("transformer_layer_config"), "transformer_layer_config is missing"),
        (
            lambda c: c["transformer_layer_config"].pop("head_dim"),
            "transformer_layer_config.head_dim is missing",
        ),
        (lambda c: c["transformer_layer_config"].update(num_key_value_heads=3), "multiple of 3"),
        (
            lambda c: c["transformer_layer_config"].update(layer_types=["full_attention"]),
            "num_hidden_layers 2",
        ),
        (lambda c: c["speculators_config"].pop("verifier"), "speculators_config.verifier is missing"),
        (
            lambda c: c["speculators_config"]["verifier"].update(name_or_path=""),
            'verifier.name_or_path is ""',
        ),
    ],
)
def test_refused_values(change: Change, words: str) -> None:
    config = draft_config()
    change(config)
    assert words in refusal(config)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda c: c.update(markov_head_type="lstm"),
            'markov_head_type is "lstm"; must be one of vanilla, gated, rnn',
        ),
        (lambda c: c.pop("markov_rank"), "markov_rank is missing"),
    ],
)
def test_refused_markov_heads(change: Change, words: str) -> None:
    config = draft_config("dspark")
    change(config)
    assert words in refusal(config)


def test_anchor_that_predicts_allows_a_whole_block() -> None:
    config = draft_config("dspark") | {"sample_from_anchor": True}
    assert facts(config).max_k == 8
    assert facts(draft_config("dspark")).max_k == 7


@pytest.mark.parametrize("text", ["", "{", "[1]", "version https://git-lfs.github.com/spec/v1\noid x"])
def test_unreadable_config(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        Fields.read(tmp_path / "config.json")
