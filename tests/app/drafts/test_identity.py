"""What is loaded, as /drafts tells it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.config.settings import Settings, SettingsError
from app.drafts.identity import Identity
from plugin.drafts.checkpoint import resolve
from plugin.drafts.families import FAMILIES
from tests.plugin.drafts.folders import write_draft, write_pair


@pytest.mark.parametrize("family", FAMILIES)
def test_with_a_draft(tmp_path: Path, family: str) -> None:
    """The true family and class; K as asked beside the trained one (B27, B29)."""
    write_pair(tmp_path)
    folder = write_draft(tmp_path / "my-draft", family)
    identity = Identity.of(resolve(str(folder), None, None, 3), Settings(max_model_len=100))
    told = json.loads(json.dumps(identity.to_json()))
    assert (told["family"], told["draft_class"].lower()) == (family, f"{family}draftmodel")
    assert (told["k"], told["default_k"], told["block_size"]) == (3, 7, 8)
    assert (told["draft"], told["draft_path"]) == ("my-draft", str(folder))
    assert (told["aux_layer_ids"], told["mask_token_id"]) == ([0, 2, 4], 4)
    assert (told["lm_head"], told["embedding"], told["configured_verifier"]) == ("own", "own", "../verifier")
    assert told["markov_head_type"] == ("vanilla" if family == "dspark" else None)
    assert (told["max_model_len"], told["max_encoder_len"]) == (100, 100)
    assert told["verifier"]["path"] == str(tmp_path / "verifier")
    assert identity.model_name == "my-draft"


def test_without_a_draft(tmp_path: Path) -> None:
    """The verifier alone has family null and no draft facts (B23)."""
    write_pair(tmp_path)
    identity = Identity.of(resolve(str(tmp_path / "verifier"), None, None, None), Settings())
    told = identity.to_json()
    assert [told[key] for key in ("family", "draft", "k", "aux_layer_ids", "lm_head")] == [None] * 5
    assert (identity.model_name, identity.max_model_len) == ("verifier", 512)


def test_served_names(tmp_path: Path) -> None:
    """Given names replace the path's (D21); the default is never empty (D14)."""
    found = resolve(f"{write_pair(tmp_path)}/dflash///", None, None, None)
    assert Identity.of(found, Settings()).served_model_names == ("dflash",)
    assert Identity.of(found, Settings(served_model_name=("a", "b"))).model_name == "a"


def test_lengths_beyond_the_verifier(tmp_path: Path) -> None:
    found = resolve(str(write_pair(tmp_path) / "verifier"), None, None, None)
    with pytest.raises(SettingsError, match="max_position_embeddings 512"):
        Identity.of(found, Settings(max_model_len=513))


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (
            {"max_model_len": 64, "max_encoder_len": 32},
            "T5GEMMA_MAX_NUM_BATCHED_TOKENS=63 is below T5GEMMA_MAX_MODEL_LEN=64",
        ),
        (
            {"max_model_len": 32, "max_encoder_len": 65},
            "T5GEMMA_MAX_NUM_BATCHED_TOKENS=63 is below T5GEMMA_MAX_ENCODER_LEN=65",
        ),
        ({}, "T5GEMMA_MAX_NUM_BATCHED_TOKENS=63 is below T5GEMMA_MAX_ENCODER_LEN=512"),
    ],
)
def test_batch_below_a_limit(tmp_path: Path, limits: dict[str, int], message: str) -> None:
    """Refused before vLLM starts, with both numbers; as large as both limits it is taken (C08)."""
    found = resolve(str(write_pair(tmp_path) / "verifier"), None, None, None)
    with pytest.raises(SettingsError, match=message):
        Identity.of(found, Settings(max_num_batched_tokens=63, **limits))
    enough = max([*limits.values()] or [512])
    assert Identity.of(found, Settings(max_num_batched_tokens=enough, **limits)).max_num_seqs == 4


@pytest.mark.parametrize("field", ["k_floor", "k_ceiling"])
def test_limits_of_k_lie_in_the_block(tmp_path: Path, field: str) -> None:
    found = resolve(str(write_pair(tmp_path) / "dflash"), None, None, None)
    Identity.of(found, Settings(_env_file=None, **{field: 7}))
    with pytest.raises(
        SettingsError, match=rf"T5GEMMA_{field.upper()}=8 is above 7: block_size is 8 in .*config.json"
    ):
        Identity.of(found, Settings(_env_file=None, **{field: 8}))
    Identity.of(resolve(None, None, str(tmp_path / "verifier"), None), Settings(_env_file=None, **{field: 8}))
